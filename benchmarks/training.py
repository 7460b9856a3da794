"""How long a training step takes, beside DistributedDataParallel and without communication.

    python benchmarks/training.py --np 2

Every rank has one thread. "alone" are as many processes that train independently: what is possible
where they share the machine's cores and memory. In each round all measure in turn; a figure is the
median over the steps of the slowest rank's time, then the median over the rounds. A ratio is that
of one round's times, with its range over the rounds: alone/ours says how much of what is possible
is reached (1: all), ddp/ours how much faster we are.
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
SMOKE = ("ddp", "horoscale-overlap")  # a rank of torch takes seconds to start
RANK_PROGRAM = Path(__file__).with_name("training_rank.py")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--np", type=int, default=2, help="ranks (default: 2)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="steps in a round (default: 8)")
    parser.add_argument("--tasks", default=",".join(TASKS), help="comma-separated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's figures")
    parser.add_argument("--smoke", action="store_true", help="one round of little: does it run?")
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
    pairs.append(("horoscale", "horoscale-backward"))  # what waiting in backward() costs
    print("\n".join(figures.comparison(measured, pairs)))
    figures.write(arguments.json, measured, np=arguments.np)


if __name__ == "__main__":
    main()
