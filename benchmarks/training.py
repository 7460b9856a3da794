"""Measures a training step, compared with DistributedDataParallel and with no communication.

    python benchmarks/training.py --np 2

Every rank has one thread. "alone" are as many processes that train independently: the upper bound
if they share the machine's cores and memory. In each round all are measured alternately. A figure
is the slowest rank's time: the median over the steps, then the median over the rounds. A ratio
compares times of one round, with its range over the rounds: alone/ours is the fraction of the upper
bound that is reached (1: all), and ddp/ours is how much faster ours is.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path

import figures
from folders import temporary_folder
from ranks import Job

TASKS = ("perceptron", "convolutions", "transformer")
OURS = ("horoscale", "horoscale-backward", "horoscale-overlap")
NAMES = ("alone", "ddp", *OURS)
SMOKE = ("ddp", "horoscale-overlap")  # ranks with torch take seconds to start
RANK_PROGRAM = Path(__file__).with_name("training_rank.py")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--np", type=int, default=2, help="ranks (default: 2)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="steps in a round (default: 8)")
    parser.add_argument("--tasks", default=",".join(TASKS), help="comma-separated")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures of every round"
    )
    parser.add_argument("--smoke", action="store_true", help="smoke test: one short round")
    arguments = parser.parse_args()
    tasks, rounds, names = arguments.tasks.split(","), arguments.rounds, NAMES
    if unknown := set(tasks) - set(TASKS):
        parser.error(f"unknown tasks {sorted(unknown)}; known are {', '.join(TASKS)}")
    if arguments.smoke:
        tasks, rounds, names = ["transformer"], 1, SMOKE
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        jobs = []
        for name in names:
            jobs.append(Job(RANK_PROGRAM, name, arguments.np, folder, folder))
            stack.callback(jobs[-1].end)
        cases = {task: (task, arguments.steps) for task in tasks}
        measured = figures.interleave(jobs, cases, rounds)
    print(f"a training step, {arguments.np} ranks, {os.cpu_count()} cores, {rounds} rounds")
    print("\n".join(figures.medians(measured, "ms", 1e3)))
    pairs = [("alone", "ddp"), *((peer, mine) for mine in OURS for peer in ("alone", "ddp"))]
    pairs.append(("horoscale", "horoscale-backward"))  # the cost of waiting in backward()
    print("\n".join(figures.comparison(measured, pairs)))
    figures.write(arguments.json, measured, np=arguments.np)


if __name__ == "__main__":
    main()
