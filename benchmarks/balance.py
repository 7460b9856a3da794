"""Measures what hvd.elastic.balance() gains if one rank is half as fast as the others.

    horoscalerun -np 2 python benchmarks/balance.py [--slow 2] [--device]

Trains a small model. Each sample additionally keeps the core busy for --microseconds, on the last
rank --slow times as long. With --device the core is idle in that time, as if an accelerator
computed, so the share of a core that each rank gets does not matter. After the sizes have settled,
equal and balanced batches alternate, 20 steps each, so that other load on the machine affects both.
It prints the throughput of the median steps, which depends on the ranks only, and that of all
steps, which also depends on other load.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from statistics import fmean, median
from typing import Any

import torch

import horoscale.torch as hvd

SETTLE, BLOCK = 60, 20  # steps


class Training:
    """A model that is trained in the steps of any plan."""

    def __init__(self, seconds: float, device: bool) -> None:
        """Create the model; each sample takes this many additional seconds on this rank."""
        torch.manual_seed(0)
        self.seconds = seconds
        self.device = device
        self.model = torch.nn.Sequential(
            torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
        )
        self.optimizer = hvd.DistributedOptimizer(torch.optim.SGD(self.model.parameters(), lr=0.01))
        self.samples, self.targets = torch.randn(2048, 64), torch.randint(0, 10, (2048,))

    def steps(self, batch_size: Any) -> Iterator[int]:
        """Train step by step; yield this rank's samples."""
        plan = hvd.elastic.DataPlan(1 << 20, batch_size)
        state = hvd.elastic.ObjectState(plan=plan)
        while True:
            for share in plan:
                self._step(torch.tensor(share.indices) % len(self.samples), share.weight)
                state.commit()
                yield len(share)
            plan.next_epoch()

    def _step(self, chosen: torch.Tensor, weight: float) -> None:
        seconds = len(chosen) * self.seconds
        if self.device:
            time.sleep(seconds)
        until = time.thread_time() + (0.0 if self.device else seconds)
        while time.thread_time() < until:
            pass
        self.optimizer.zero_grad()
        self.optimizer.set_local_scale(weight)
        logits = self.model(self.samples[chosen])
        torch.nn.functional.cross_entropy(logits, self.targets[chosen]).backward()
        self.optimizer.step()


def main() -> None:
    """Measure, and print on rank 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--slow", type=float, default=2.0, help="factor for the time of a sample on the last rank"
    )
    parser.add_argument("--microseconds", type=float, default=100.0, help="time of a sample")
    parser.add_argument("--device", action="store_true", help="keep the core idle in that time")
    parser.add_argument("--batch", type=int, default=192, help="samples per rank, on average")
    parser.add_argument("--rounds", type=int, default=6)
    given = parser.parse_args()
    hvd.init()
    torch.set_num_threads(1)
    slow = given.slow if hvd.rank() == hvd.size() - 1 else 1.0
    training = Training(slow * given.microseconds * 1e-6, given.device)
    equal = training.steps(given.batch)
    balanced = training.steps(hvd.elastic.balance(given.batch))
    seconds_of(equal, 1)
    seconds_of(balanced, SETTLE)
    taken: tuple[list[float], list[float]] = [], []
    for _ in range(given.rounds):
        for seconds, steps in zip(taken, (equal, balanced), strict=True):
            seconds += seconds_of(steps, BLOCK)
    sizes = hvd.allgather_object(next(balanced))
    if hvd.rank() == 0:
        samples = given.batch * hvd.size()
        print("sizes", sizes)
        for what, of in (("median step", median), ("all steps", fmean)):
            rates = [samples / of(seconds) for seconds in taken]
            print(
                f"{what}: equal {rates[0]:.0f}, balanced {rates[1]:.0f} samples/s, "
                f"ratio {rates[1] / rates[0]:.2f}"
            )


def seconds_of(steps: Iterator[int], count: int) -> list[float]:
    """Return how long each of some steps takes."""
    hvd.barrier()
    seconds = []
    for _ in range(count):
        began = time.monotonic()
        next(steps)
        seconds.append(time.monotonic() - began)
    return seconds


if __name__ == "__main__":
    main()
