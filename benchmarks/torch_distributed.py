"""How long torch.distributed's all_reduce takes over horoscale, beside Gloo in the same processes.

    python benchmarks/torch_distributed.py

Starts two ranks (-n: more), whose default group is horoscale's and which have a second one of
Gloo's. The groups take turns within each round; of a round it is the mean over its calls. A ratio
is Gloo's time divided by ours: the median over the rounds, with its range. Results are checked.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import horoscale.torch.distributed  # noqa: F401

SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
SMALL_AT_ONCE = 160


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def all_reduce(count: int) -> Callable[[Any], None]:
    tensor = torch.ones(count)

    def call(group: Any) -> None:
        tensor.fill_(1.0)
        dist.all_reduce(tensor, group=group)
        assert tensor[-1] == dist.get_world_size()

    return call


def many_small(group: Any) -> None:
    tensors = [torch.ones(256) for _ in range(SMALL_AT_ONCE)]
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
    for work in works:
        work.wait()
    assert tensors[-1][0] == dist.get_world_size()


def seconds(call: Callable[[Any], None], group: Any, repeats: int) -> float:
    dist.barrier()
    start = time.perf_counter()
    for _ in range(repeats):
        call(group)
    return (time.perf_counter() - start) / repeats


def measure(rounds: int) -> None:
    dist.init_process_group("horoscale", init_method="horoscale://")
    ours, gloo = dist.group.WORLD, dist.new_group(backend="gloo")
    cases = {f"all_reduce {size >> 10} KiB": all_reduce(size // 4) for size in SIZES}
    cases[f"{SMALL_AT_ONCE} asynchronous all_reduce 1 KiB"] = many_small
    for name, call in cases.items():
        repeats = 5 if "16384" in name or call is many_small else 50
        ratios, times = [], []
        for number in range(rounds + 1):
            pair = [seconds(call, group, repeats) for group in (ours, gloo)]
            if number:  # the first warms up
                times.append(pair[0])
                ratios.append(pair[1] / pair[0])
        if dist.get_rank() == 0:
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            ours_us = statistics.median(times) * 1e6
            median = statistics.median(ratios)
            print(f"{name:38} {ours_us:9.1f} µs   Gloo's / ours {median:5.2f} ({spread})")
    dist.destroy_process_group()


def main() -> None:
    arguments = parse_arguments()
    if arguments.rank:
        measure(arguments.rounds)
        return
    launcher = [sys.executable, "-m", "horoscale.runner", "-np", str(arguments.ranks)]
    program = [sys.executable, __file__, "--rank", "--rounds", str(arguments.rounds)]
    subprocess.run([*launcher, *program], check=True)


if __name__ == "__main__":
    main()
