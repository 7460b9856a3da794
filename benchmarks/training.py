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
import json
import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ranks import Job

TASKS = ("perceptron", "convolutions", "transformer")
OURS = ("horoscale", "horoscale-overlap")
NAMES = ("alone", "ddp", *OURS)
RANK_PROGRAM = Path(__file__).with_name("training_rank.py")

Rounds = dict[str, list[float]]


def run(jobs: Sequence[Job], tasks: Sequence[str], rounds: int, steps: int) -> dict[str, Rounds]:
    """Measure each task `rounds` times, all in turn."""
    figures: dict[str, Rounds] = {}
    for task in tasks:
        figures[task] = {job.name: [] for job in jobs}
        for index in range(rounds):
            first = index % len(jobs)  # another one begins in each round
            for job in [*jobs[first:], *jobs[:first]]:
                figures[task][job.name].append(job.measure(task, steps))
    return figures


def table(figures: dict[str, Rounds]) -> Iterator[str]:
    """Lines of the result."""
    yield f"{'ms':>14}" + "".join(f"{name:>20}" for name in NAMES)
    for task, rounds in figures.items():
        cells = "".join(f"{statistics.median(rounds[name]) * 1e3:20,.1f}" for name in NAMES)
        yield f"{task:>14}{cells}"
    yield ""
    yield "ratios of times: median (range over the rounds)"
    for task, rounds in figures.items():
        for above, below in [("alone", "ddp"), *((p, o) for o in OURS for p in ("alone", "ddp"))]:
            each = [a / b for a, b in zip(rounds[above], rounds[below], strict=True)]
            name = f"{above} / {below}"
            middle = statistics.median(each)
            yield f"{task:>14}   {name:<27} {middle:.2f} ({min(each):.2f} to {max(each):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--np", type=int, default=2, help="ranks (default: 2)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="steps in a round (default: 8)")
    parser.add_argument("--tasks", default=",".join(TASKS), help="comma-separated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's figures")
    parser.add_argument("--smoke", action="store_true", help="one task, one round: does it run?")
    arguments = parser.parse_args()
    tasks, rounds = arguments.tasks.split(","), arguments.rounds
    if unknown := set(tasks) - set(TASKS):
        parser.error(f"unknown tasks {sorted(unknown)}; known are {', '.join(TASKS)}")
    if arguments.smoke:
        tasks, rounds = ["transformer"], 1
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        jobs = []
        for name in NAMES:
            jobs.append(Job(RANK_PROGRAM, name, arguments.np, folder, folder))
            stack.callback(jobs[-1].end)
        figures = run(jobs, tasks, rounds, arguments.steps)
    print(f"a training step, {arguments.np} ranks, {os.cpu_count()} cores, {rounds} rounds")
    print("\n".join(table(figures)))
    if arguments.json:
        arguments.json.write_text(json.dumps({"np": arguments.np, "seconds": figures}, indent=1))


if __name__ == "__main__":
    main()
