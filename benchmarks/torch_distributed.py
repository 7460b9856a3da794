"""Measures torch.distributed operations over horoscale and over Gloo, in the same processes.

    python benchmarks/torch_distributed.py

Starts two ranks with horoscale as the default group and a second group with Gloo. The groups
alternate within each round. A round's value is the median over its calls, on rank 0. A ratio is
Gloo's time divided by ours: the median over the rounds, with its range. Results are checked.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import figures
import torch
import torch.distributed as dist
from allreduce import size_text
from orders import times

import horoscale.torch.distributed  # noqa: F401

SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
SMALL_AT_ONCE = 160
RANKS = 2
ROUND_SECONDS = 0.2
MOST_CALLS = 2000
GROUPS = ("horoscale", "gloo")

Call = Callable[[Any], object]


class Case(NamedTuple):
    """A call on a group, and the values of `read` after it if `given` was filled with 1."""

    call: Call
    given: torch.Tensor
    read: torch.Tensor
    result: float
    share: float = 1.0  # fraction of the time of a call that counts


def all_reduce(size: int) -> Case:
    tensor = torch.zeros(size // 4)
    return Case(lambda group: dist.all_reduce(tensor, group=group), tensor, tensor, RANKS)


def all_gather(size: int) -> Case:
    given, output = torch.zeros(size // 4 // RANKS), torch.zeros(size // 4)
    return Case(
        lambda group: dist.all_gather_into_tensor(output, given, group=group), given, output, 1
    )


def reduce_scatter(size: int) -> Case:
    given, output = torch.zeros(size // 4), torch.zeros(size // 4 // RANKS)
    return Case(
        lambda group: dist.reduce_scatter_tensor(output, given, group=group), given, output, RANKS
    )


def send_and_recv(size: int) -> Case:
    """Send to the other rank and back; half of that time counts."""
    given, received = torch.zeros(size // 4), torch.zeros(size // 4)
    peer = 1 - dist.get_rank()

    def call(group: Any) -> None:
        if peer == 1:
            dist.send(given, peer, group=group)
        dist.recv(received, peer, group=group)
        if peer == 0:
            dist.send(given, peer, group=group)

    return Case(call, given, received, 1, share=0.5)


def many_small() -> Case:
    tensors = list(torch.zeros(SMALL_AT_ONCE, 256))

    def call(group: Any) -> None:
        works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
        for work in works:
            work.wait()

    return Case(call, tensors[-1], tensors[-1], RANKS)


def verify(case: Case, group: Any) -> None:
    case.given.fill_(1)
    case.call(group)
    assert case.read[0] == case.read[-1] == case.result
    case.given.zero_()  # input is zero: repeated sums would overflow


def seconds(case: Case, group: Any, repeats: int) -> float:
    verify(case, group)
    dist.barrier()
    taken = statistics.median(times(lambda: case.call(group), repeats))
    verify(case, group)
    return taken * case.share


def repeats_of(case: Case, group: Any) -> int:
    """Return the number of calls of a round, the same on all ranks."""
    count = torch.tensor([min(MOST_CALLS, int(ROUND_SECONDS / seconds(case, group, 3)) + 1)])
    dist.broadcast(count, 0)
    return int(count)


def measure(rounds: int, smoke: bool, path: Path | None) -> None:
    dist.init_process_group("horoscale", init_method="horoscale://")
    groups = dict(zip(GROUPS, (dist.group.WORLD, dist.new_group(backend="gloo")), strict=True))
    kinds = {
        "all_reduce": (all_reduce, SIZES),
        "all_gather_into_tensor": (all_gather, SIZES[1:4]),
        "reduce_scatter_tensor": (reduce_scatter, SIZES[1:4]),
        "send and recv": (send_and_recv, (SIZES[0], SIZES[3])),
    }
    cases = {
        f"{kind} {size_text(size)}": lambda make=make, size=size: make(size)
        for kind, (make, sizes) in kinds.items()
        for size in (sizes[:1] if smoke else sizes)
    }
    cases[f"{SMALL_AT_ONCE} all_reduce 1 KiB"] = many_small
    measured: figures.Figures = {}
    for name, make in cases.items():
        case = make()
        counts = {group: repeats_of(case, groups[group]) for group in GROUPS}
        measured[name] = {group: [] for group in GROUPS}
        for index in range(rounds):
            for group in GROUPS[:: 1 if index % 2 else -1]:
                measured[name][group].append(seconds(case, groups[group], counts[group]))
    if dist.get_rank() == 0:
        print(f"torch.distributed, {RANKS} ranks, {os.cpu_count()} cores, {rounds} rounds")
        print("\n".join(figures.medians(measured, "µs", 1e6)))
        print("\n".join(figures.comparison(measured, [("gloo", "horoscale")])))
        figures.write(path, measured)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures of every round"
    )
    parser.add_argument("--smoke", action="store_true", help="smoke test: one size, one round")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        torch.set_num_threads(1)
        rounds = 1 if arguments.smoke else arguments.rounds
        measure(rounds, arguments.smoke, arguments.json)
        return
    program = Path(__file__).resolve()
    launcher = [sys.executable, "-m", "horoscale.runner", "-np", str(RANKS), sys.executable]
    options = ["--rounds", str(arguments.rounds), *(["--smoke"] if arguments.smoke else [])]
    if arguments.json:
        options += ["--json", str(arguments.json.resolve())]
    # In another folder than the sources, so that the installed package is measured.
    subprocess.run([*launcher, program, "--rank", *options], check=True, cwd=program.parent)


if __name__ == "__main__":
    main()
