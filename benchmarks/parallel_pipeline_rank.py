"""One rank of a pipeline whose stages sleep, for benchmarks/parallel_pipeline.py."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import torch
from orders import serve, times
from parallel_pipeline import MICROBATCHES, STAGES, UNIT_SECONDS
from torch import nn

ACTIVATIONS = (64, 1024)  # of a microbatch: 256 KiB
Step = Callable[[], object]


_slept = [0.0]  # seconds, since the step began


def sleep(units: int) -> None:
    begin = time.perf_counter()
    time.sleep(units * UNIT_SECONDS)
    _slept[0] += time.perf_counter() - begin


class _Sleep(torch.autograd.Function):
    """Sleeps one unit in the backward pass, and so many in the forward pass."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor, units: int) -> torch.Tensor:
        sleep(units)
        return values.view_as(values)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        sleep(1)
        return gradient, None


class SleepingStage(nn.Module):
    """Takes as long as a stage that computes, and leaves the cores to the messages."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return _Sleep.apply(values, 1) + _Sleep.apply(self.weight, 0)


def whole_batch() -> torch.Tensor:
    return torch.ones(ACTIVATIONS[0] * MICROBATCHES, ACTIVATIONS[1])


class FirstStage(SleepingStage):
    """Has a backward pass through its input, too, which needs no gradient."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return super().forward(values * self.weight)


def stage_of(rank: int) -> nn.Module:
    return SleepingStage() if rank else FirstStage()


def horoscale() -> Callable[[str], Step]:
    """Ours."""
    import horoscale.torch as hvd
    import horoscale.torch.parallel as par

    hvd.init()
    axis = par.Axis("pp", tuple(range(STAGES)), hvd.rank(), hvd.global_process_set)
    stages = [stage_of(rank) for rank in range(STAGES)]
    batch = whole_batch()

    def prepare(schedule: str) -> Step:
        pipe = par.Pipeline(
            stages,
            axis,
            loss=nn.functional.mse_loss,
            schedule=schedule,
            microbatches=MICROBATCHES,
        )
        return lambda: pipe.step(batch, batch)

    return prepare


def gloo() -> Callable[[str], Step]:
    """torch.distributed.pipelining over Gloo."""
    from torch import distributed
    from torch.distributed import pipelining

    rank = int(os.environ["RANK"])
    where = f"file://{os.environ['JOB_FILE']}"
    distributed.init_process_group("gloo", where, rank=rank, world_size=STAGES)
    batch = whole_batch()
    schedules = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B}

    def prepare(schedule: str) -> Step:
        stage = pipelining.PipelineStage(stage_of(rank), rank, STAGES, torch.device("cpu"))
        step = schedules[schedule](
            stage, n_microbatches=MICROBATCHES, loss_fn=nn.functional.mse_loss
        )
        return (lambda: step.step(target=batch)) if rank else (lambda: step.step(batch))

    return prepare


IMPLEMENTATIONS = {"horoscale": horoscale, "gloo": gloo}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("implementation", choices=IMPLEMENTATIONS)
    parser.add_argument("address", help="of the benchmark")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    prepare = IMPLEMENTATIONS[arguments.implementation]()
    steps: dict[str, Step] = {}

    def measure(schedule: str, count: int) -> list[float]:
        if schedule not in steps:
            steps[schedule] = prepare(schedule)
            steps[schedule]()  # finds out shapes
        steps[schedule]()
        bubbles = []
        for _ in range(count):
            _slept[0] = 0.0
            (seconds,) = times(steps[schedule], 1)
            bubbles.append(1 - _slept[0] / seconds)
        return bubbles

    serve(arguments.address, measure)


if __name__ == "__main__":
    main()
