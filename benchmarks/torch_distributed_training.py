"""Measures training with PyTorch's own libraries over horoscale and over Gloo.

    python benchmarks/torch_distributed_training.py

DistributedDataParallel trains the models of benchmarks/training.py, FSDP2 its transformer, and a
pipeline runs 1F1B over two stages that sleep instead of computing. The programs differ only in the
name of the backend. "alone" is the same without communication, which is the upper bound: as many
processes that train independently, or for a pipeline the shortest time that the sleeps of its
stages allow.

In each round all are measured alternately. A figure is the slowest rank's time: the median over the
steps, then the median over the rounds. A ratio compares times of one round, with its range.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path

import figures
from folders import temporary_folder
from ranks import Job

RANKS = 2
CASES = {
    "ddp perceptron": 8,  # steps in a round
    "ddp convolutions": 8,
    "ddp transformer": 8,
    "fsdp2 transformer": 8,
    "1f1b 30 ms": 3,  # of a stage, for each microbatch
    "1f1b 150 ms": 2,
}
SMOKE = {"ddp transformer": 2, "1f1b 30 ms": 1}
NAMES = ("alone", "gloo", "horoscale")
RANK_PROGRAM = Path(__file__).with_name("torch_distributed_training_rank.py")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures of every round"
    )
    parser.add_argument("--smoke", action="store_true", help="smoke test: one short round")
    arguments = parser.parse_args()
    if unknown := set(arguments.cases.split(",")) - set(CASES):
        parser.error(f"unknown cases {sorted(unknown)}; known are {', '.join(CASES)}")
    chosen = {case: CASES[case] for case in arguments.cases.split(",")}
    names, rounds = NAMES, arguments.rounds
    if arguments.smoke:
        chosen, names, rounds = SMOKE, NAMES[1:], 1  # ranks with torch take seconds to start
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        jobs = []
        for name in names:
            jobs.append(Job(RANK_PROGRAM, name, RANKS, folder, folder))
            stack.callback(jobs[-1].end)
        measured = figures.interleave(jobs, {case: (case, n) for case, n in chosen.items()}, rounds)
    print(f"a training step, {RANKS} ranks, {os.cpu_count()} cores, {rounds} rounds")
    print("\n".join(figures.medians(measured, "ms", 1e3)))
    pairs = [("gloo", "horoscale"), ("alone", "horoscale"), ("alone", "gloo")]
    print("\n".join(figures.comparison(measured, pairs)))
    figures.write(arguments.json, measured)


if __name__ == "__main__":
    main()
