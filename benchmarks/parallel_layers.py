"""Measures the cost of dividing layers, compared with DTensor and with hand-written functions.

    python benchmarks/parallel_layers.py --np 2

Runs forward and backward passes of an MLP (1,024 features, 4,096 hidden) and of a transformer block
(512 features, 8 heads), both for 512 tokens, with one thread per rank. "one" is one process with
the whole layers. "dtensor" is PyTorch's parallelize_module, and "hand" is what tutorials write,
both over Gloo. "ours" is horoscale.torch.parallel. A figure is the CPU time of all threads of the
rank that used most: the median over the steps, then over the rounds, in which all implementations
alternate. The efficiency is one / (ranks * ours).
"""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path
from typing import Any, NamedTuple

import figures
from folders import temporary_folder
from ranks import Job

RANK_PROGRAM = Path(__file__).with_name("parallel_layers_rank.py")
CASES = {"mlp": 1024, "block": 512}  # features
JOB_OF = {"one": "one", "dtensor": "gloo", "hand": "gloo", "ours": "horoscale"}


class Measured(NamedTuple):
    """One way to divide layers."""

    name: str
    job: Job

    def measure(self, *order: Any) -> float:
        """Return the CPU seconds of a step."""
        return self.job.measure(self.name, *order)


def run(rounds: int, smoke: bool, ranks: int = 2) -> figures.Figures:
    """Measure all ways on this many ranks, and print."""
    widths, steps = ({"mlp": 64}, 1) if smoke else (CASES, 6)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        jobs = {}
        for name in dict.fromkeys(JOB_OF.values()):
            jobs[name] = Job(RANK_PROGRAM, name, 1 if name == "one" else ranks, folder, folder)
            stack.callback(jobs[name].end)
        cases = {case: (case, width, steps) for case, width in widths.items()}
        ways = [Measured(way, jobs[job]) for way, job in JOB_OF.items()]
        measured = figures.interleave(ways, cases, rounds)
    print(f"CPU time of a step, {ranks} ranks, {os.cpu_count()} cores, {rounds} rounds")
    print("\n".join(figures.medians(measured, "ms", 1e3)))
    print("\n".join(figures.comparison(measured, [("dtensor", "ours"), ("hand", "ours")])))
    for case, of_case in measured.items():
        ratios = figures.ratios(of_case, "one", "ours")
        print(f"{case}: efficiency {figures.spread([ratio / ranks for ratio in ratios])}")
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--np", type=int, default=2, help="how many ranks (default: 2)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures of every round"
    )
    parser.add_argument("--smoke", action="store_true", help="smoke test: one short round")
    arguments = parser.parse_args()
    rounds = 1 if arguments.smoke else arguments.rounds
    measured = run(rounds, arguments.smoke, arguments.np)
    figures.write(arguments.json, measured, np=arguments.np)


if __name__ == "__main__":
    main()
