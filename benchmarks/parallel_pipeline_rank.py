"""One rank of a pipeline whose stages sleep, for benchmarks/parallel_pipeline.py."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import torch
from orders import serve
from parallel_pipeline import IDEAL, MICROBATCHES, STAGES, UNIT_SECONDS
from torch import nn

from horoscale.torch.parallel.pipeline.schedule import Action, Operation, make_schedule
from horoscale.torch.parallel.pipeline.simulate import simulate

ACTIVATIONS = (64, 1024)  # of a microbatch: 256 KiB
Step = Callable[[], object]
Prepare = Callable[[str], Step]
Gather = Callable[[Any], list[Any]]  # of all ranks


class Computing:
    """The computing time of a rank: for each action the seconds of each microbatch, in order."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.seconds: dict[Action, list[float]] = {action: [] for action in Action}
        self.cpu_seconds = 0.0
        self._now: list[float] = []

    def begin(self, action: Action) -> None:
        """Count what follows as the next microbatch of an action."""
        self._now = self.seconds[action]
        self._now.append(0.0)

    def timed(self, function: Callable[..., Any], begins: Action | None = None) -> Any:
        """Return a function that is counted, for the next microbatch of the action it `begins`."""

        def call(*arguments: Any, **options: Any) -> Any:
            if begins is not None:
                self.begin(begins)
            start, cpu_start = time.perf_counter(), time.thread_time()
            try:
                return function(*arguments, **options)
            finally:
                self._now[-1] += time.perf_counter() - start
                self.cpu_seconds += time.thread_time() - cpu_start

        return call


computing = Computing()
loss_function = computing.timed(nn.functional.mse_loss)  # after the last stage's forward pass


class _Sleep(torch.autograd.Function):
    """Sleeps one unit in the backward pass, and a given number in the forward pass."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor, units: int) -> torch.Tensor:
        time.sleep(units * UNIT_SECONDS)
        return values.view_as(values)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        time.sleep(UNIT_SECONDS)
        return gradient, None


class SleepingStage(nn.Module):
    """Takes as long as a stage that computes, and leaves the cores to the messages."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.forward = computing.timed(self.compute, Action.FORWARD)

    def compute(self, values: torch.Tensor) -> torch.Tensor:
        return _Sleep.apply(values, 1) + _Sleep.apply(self.weight, 0)


def whole_batch() -> torch.Tensor:
    return torch.ones(ACTIVATIONS[0] * MICROBATCHES, ACTIVATIONS[1])


class FirstStage(SleepingStage):
    """Also runs a backward pass through its input, which needs no gradient."""

    def compute(self, values: torch.Tensor) -> torch.Tensor:
        return super().compute(values * self.weight)


def stage_of(rank: int) -> nn.Module:
    return SleepingStage() if rank else FirstStage()


def horoscale() -> tuple[Prepare, Gather]:
    """Ours."""
    import horoscale.torch as hvd
    import horoscale.torch.parallel as par
    from horoscale.torch.parallel.pipeline.stage import Stage

    hvd.init()
    axis = par.Axis("pp", tuple(range(STAGES)), hvd.rank(), hvd.global_process_set)
    stages = [partial(stage_of, rank) for rank in range(STAGES)]
    batch = whole_batch()
    # One action consists of any number of calls of torch.autograd.backward().
    for method, action in (
        ("backward", Action.BACKWARD),
        ("backward_inputs", Action.INPUT),
        ("backward_weights", Action.WEIGHT),
    ):
        setattr(Stage, method, _beginning(action, getattr(Stage, method)))

    def prepare(schedule: str) -> Step:
        pipe = par.Pipeline(
            stages, axis, loss=loss_function, schedule=schedule, microbatches=MICROBATCHES
        )
        return lambda: pipe.step(batch, batch)

    return prepare, hvd.allgather_object


def _beginning(action: Action, method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        computing.begin(action)
        return method(*arguments, **options)

    return call


def gloo() -> tuple[Prepare, Gather]:
    """torch.distributed.pipelining over Gloo."""
    from torch import distributed
    from torch.distributed import pipelining
    from torch.distributed.pipelining.stage import _PipelineStageBase

    rank = int(os.environ["RANK"])
    where = f"file://{os.environ['JOB_FILE']}"
    distributed.init_process_group("gloo", where, rank=rank, world_size=STAGES)
    batch = whole_batch()
    schedules = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B}
    chunk = _PipelineStageBase.backward_maybe_with_nosync
    _PipelineStageBase.backward_maybe_with_nosync = _beginning(Action.BACKWARD, chunk)

    def prepare(schedule: str) -> Step:
        stage = pipelining.PipelineStage(stage_of(rank), rank, STAGES, torch.device("cpu"))
        step = schedules[schedule](stage, n_microbatches=MICROBATCHES, loss_fn=loss_function)
        return (lambda: step.step(target=batch)) if rank else (lambda: step.step(batch))

    def gather(value: Any) -> list[Any]:
        values: list[Any] = [None] * STAGES
        distributed.all_gather_object(values, value)
        return values

    return prepare, gather


IMPLEMENTATIONS = {"horoscale": horoscale, "gloo": gloo}


def bubble(schedule: str, seconds: float, of_ranks: list[dict[Action, list[float]]]) -> float:
    """Return the bubble of a step whose stages take equally long.

    It is the schedule's bubble, plus the additional waiting as a fraction of the step.
    """

    def duration(operation: Operation) -> float:
        return of_ranks[operation.stage][operation.action][operation.microbatch]

    makespan = simulate(make_schedule(schedule, STAGES, MICROBATCHES), STAGES, duration).makespan
    work = sum(map(sum, of_ranks[0].values()))
    return IDEAL[schedule] + (1 - work / seconds) - (1 - work / makespan)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("implementation", choices=IMPLEMENTATIONS)
    parser.add_argument("address", help="address of the benchmark")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    prepare, gather = IMPLEMENTATIONS[arguments.implementation]()
    steps: dict[str, Step] = {}

    def measure(what: str, schedule: str, count: int) -> list[float]:
        if schedule not in steps:
            steps[schedule] = prepare(schedule)
            for _ in range(2):
                steps[schedule]()  # detects shapes
        steps[schedule]()
        found = []
        for _ in range(count):
            computing.reset()
            start, cpu_start = time.perf_counter(), time.process_time()
            steps[schedule]()
            seconds = time.perf_counter() - start
            if what == "bubble":
                # The first rank's time: it begins first and ends last.
                (first, *_), of_ranks = zip(*gather((seconds, computing.seconds)), strict=True)
                found.append(bubble(schedule, first, list(of_ranks)))
            else:
                spent = time.process_time() - cpu_start - computing.cpu_seconds
                found.append(spent / MICROBATCHES)
        return found

    with mock.patch("torch.autograd.backward", computing.timed(torch.autograd.backward)):
        serve(arguments.address, measure)


if __name__ == "__main__":
    main()
