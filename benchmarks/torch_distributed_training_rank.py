"""One rank of one backend, for benchmarks/torch_distributed_training.py.

The benchmark starts it and sends it measurement orders.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from orders import serve, times
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from training_rank import TASKS, Step, plain_step, sgd

RANKS = 2
MICROBATCHES = 8
ACTIVATIONS = (64, 1024)  # of a microbatch: 256 KiB


def join(backend: str) -> None:
    if backend == "alone":
        return
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if backend == "gloo":
        where = f"file://{os.environ['JOB_FILE']}"
        dist.init_process_group("gloo", where, rank=rank, world_size=size)
    else:
        dist.init_process_group("horoscale", init_method="horoscale://")
    torch.manual_seed(dist.get_rank())  # inputs differ


def data_parallel(task: str) -> Step:
    model: nn.Module = TASKS[task].model()
    if dist.is_initialized():
        model = nn.parallel.DistributedDataParallel(model)
    return plain_step(model, sgd(model), TASKS[task])


def fully_sharded(task: str) -> Step:
    """FSDP2: each layer is gathered when it is needed."""
    torch.manual_seed(0)
    model = TASKS[task].model()
    if dist.is_initialized():
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    return plain_step(model, sgd(model), TASKS[task])


class _Sleep(torch.autograd.Function):
    """Sleeps, twice as long in the backward pass."""

    @staticmethod
    def forward(
        context: Any, values: torch.Tensor, weight: torch.Tensor, seconds: float
    ) -> torch.Tensor:
        context.seconds = seconds
        time.sleep(seconds / 3)
        return values * weight

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        time.sleep(context.seconds * 2 / 3)
        return gradient, gradient.mean(), None


class SleepingStage(nn.Module):
    """Takes as long as a stage that computes, and leaves the cores to the messages."""

    def __init__(self, seconds: float) -> None:
        """Take this long for a microbatch, forward and backward."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.seconds = seconds

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return _Sleep.apply(values, self.weight, self.seconds)


def pipeline(seconds: float) -> Step:
    """One step of 1F1B; alone: the sleeps of a stage, and one more of the other stage."""
    if not dist.is_initialized():
        return lambda: time.sleep((MICROBATCHES + RANKS - 1) * seconds)
    rank = dist.get_rank()
    stage = PipelineStage(SleepingStage(seconds), rank, RANKS, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=MICROBATCHES, loss_fn=nn.functional.mse_loss)
    whole = torch.ones(ACTIVATIONS[0] * MICROBATCHES, ACTIVATIONS[1])
    if rank == 0:
        return lambda: schedule.step(whole)
    return lambda: schedule.step(target=whole)


CASES: dict[str, Callable[[], Step]] = {
    **{f"ddp {task}": (lambda task=task: data_parallel(task)) for task in TASKS},
    "fsdp2 transformer": lambda: fully_sharded("transformer"),
    **{f"1f1b {ms} ms": (lambda ms=ms: pipeline(1e-3 * ms)) for ms in (30, 150)},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("backend", choices=("alone", "gloo", "horoscale"))
    parser.add_argument("socket", help="address of the benchmark")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    join(arguments.backend)
    steps: dict[str, Step] = {}

    def carry_out(name: str, iterations: int) -> list[float]:
        if name not in steps:
            steps.clear()  # one model at a time
            steps[name] = CASES[name]()
            steps[name]()  # after which DDP rearranges its buckets
        return times(steps[name], iterations, warm_up=1)

    serve(arguments.socket, carry_out)


if __name__ == "__main__":
    main()
