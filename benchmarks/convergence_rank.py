"""One rank that trains with one kind of compression, for benchmarks/convergence.py.

The benchmark starts it and sends it measurement orders.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from convergence_tasks import TASKS, Task
from orders import serve
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from training_rank import Trained, join_gloo

Make = Callable[[Task], Trained]


def adam(model: nn.Module, task: Task) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=task.learning_rate)


def ddp(rank_of_powersgd: int | None = None) -> Make:
    """DDP over Gloo, with one bucket: with several, its PowerSGD hook may deadlock or fail."""
    join_gloo()

    def make(task: Task) -> Trained:
        model = nn.parallel.DistributedDataParallel(task.model(), bucket_cap_mb=1000)
        if rank_of_powersgd:
            state = powerSGD_hook.PowerSGDState(None, rank_of_powersgd, start_powerSGD_iter=2)
            model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return model, adam(model, task)

    return make


def horoscale(name: str) -> Make:
    """DistributedOptimizer with overlap across steps, which PowerSGD does not support."""
    import horoscale.torch as hvd

    hvd.init()
    chosen = {
        "topk": hvd.Compression.topk(0.01),
        "adaptive": hvd.Compression.adaptive(),
        "adaptive-6": hvd.Compression.adaptive(error=6),
        "powersgd": hvd.Compression.powersgd(4),
    }
    compression = chosen[name] if name in chosen else getattr(hvd.Compression, name)

    def make(task: Task) -> Trained:
        model = task.model()
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(
            adam(model, task),
            model.named_parameters(),
            overlap_step=name != "powersgd",
            compression=compression,
        )
        return model, optimizer

    return make


def implementation(name: str) -> Make:
    """The way of training with this name; "ddp-powersgd-2" is DDP's hook with rank 2."""
    if name.startswith("ddp"):
        return ddp(int(name.removeprefix("ddp-powersgd-")) if name != "ddp" else None)
    return horoscale(name)


def train(
    make: Make, task: Task, seed: int, steps: int, every: int, rank: int
) -> list[tuple[float, float]]:
    """Train a new model; return seconds of training and the measure, after `every` steps each."""
    torch.manual_seed(seed)
    model, optimizer = make(task)
    random = torch.Generator().manual_seed(2 * seed + rank)
    curve = []
    seconds = 0.0
    for _ in range(steps // every):
        start = time.perf_counter()
        for _ in range(every):
            optimizer.zero_grad()
            task.loss(model, random).backward()
            optimizer.step()
        list(model.parameters())  # finishes an overlapped step
        seconds += time.perf_counter() - start
        model.eval()
        with torch.no_grad():
            curve.append((seconds, task.measure(model)))
        model.train()
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("implementation")
    parser.add_argument("socket", help="address of the benchmark")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    make = implementation(arguments.implementation)
    tasks: dict[str, Task] = {}

    def carry_out(task: str, seed: int, steps: int, every: int, files: list[str]) -> list[float]:
        tasks.setdefault(task, TASKS[task]())
        rank = int(os.environ.get("RANK") or os.environ["HOROSCALE_RANK"])
        curve = train(make, tasks[task], seed, steps, every, rank)
        Path(files[rank]).write_text(json.dumps(curve))
        return [curve[-1][0]]

    serve(arguments.socket, carry_out)


if __name__ == "__main__":
    main()
