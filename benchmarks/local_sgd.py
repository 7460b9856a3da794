"""Measures the benefit of local SGD on a network that is too slow for gradients.

    python benchmarks/local_sgd.py

Uses two hosts, which are network namespaces (requires root, ip and tc), with a link of the given
Mbit/s, and one rank with one thread on each. "gradients" is DistributedOptimizer, and
"gradients-int8" the same with hvd.Compression.int8. "local-8" is
DistributedOptimizer(sync_every=8), and so on. "alone" are two ranks at once without communication,
which is the upper bound.

A figure is the seconds of a step: for local SGD the mean over whole rounds; then the slowest
rank's, then the median over the rounds of the benchmark. A ratio compares times of one round, with
its range over the rounds. It does not consider how well a step of local SGD learns.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path
from typing import NamedTuple

import figures
from folders import temporary_folder
from ranks import Job

sys.path.append(str(Path(__file__).parents[1] / "tests" / "python"))
from support.namespaces import NetworkHosts, why_not

RANK_PROGRAM = Path(__file__).with_name("local_sgd_rank.py")
TASKS = ("transformer", "vgg")
EVERY = (1, 8, 32)
LOCAL = [f"local-{every}" for every in EVERY]
NAMES = ("alone", "gradients", "gradients-int8", *LOCAL)
SMOKE = ("gradients", "local-8")  # ranks with torch take seconds to start
PAIRS = [("gradients", "gradients-int8"), *(("gradients", name) for name in LOCAL)]
FIRST_PORT = 29600  # no other program uses ports on these hosts


class Steps(NamedTuple):
    """The seconds per step of one job."""

    name: str
    job: Job
    count: int  # minimum number of steps per measurement

    def measure(self, task: str) -> float:
        """Return the mean over steps, rounded up to whole rounds of local SGD."""
        every = int(self.name.removeprefix("local-")) if self.name in LOCAL else 1
        steps = -(-self.count // every) * every
        return self.job.measure(task, steps) / steps


def main() -> None:
    arguments = parse()
    if reason := why_not():
        sys.exit(reason)
    names = SMOKE if arguments.smoke else NAMES
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        hosts = stack.enter_context(NetworkHosts(2))
        jobs = []
        for port, name in enumerate(names, FIRST_PORT):
            job = Job(RANK_PROGRAM, name, 2, folder, folder, {}, hosts, port)
            stack.callback(job.end)
            jobs.append(Steps(name, job, arguments.steps))
        measured: figures.Figures = {}
        for rate in arguments.rates.split(","):
            hosts.limit_rate(f"{rate}mbit")
            cases = {f"{task} {rate}": (task,) for task in arguments.tasks.split(",")}
            measured |= figures.interleave(jobs, cases, arguments.rounds)
    print(f"a training step, 2 hosts, {os.cpu_count()} cores, {arguments.rounds} rounds")
    print("\n".join(figures.medians(measured, "ms", 1e3)))
    pairs = [pair for pair in PAIRS if set(pair) <= set(names)]
    print("\n".join(figures.comparison(measured, pairs)))
    figures.write(arguments.json, measured, np=2)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rates", default="100", help="of the link, in Mbit/s")
    parser.add_argument("--tasks", default=",".join(TASKS), help="comma-separated")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8, help="steps in a round (default: 8)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's figures")
    parser.add_argument("--smoke", action="store_true", help="one round of little: does it run?")
    arguments = parser.parse_args()
    if unknown := set(arguments.tasks.split(",")) - set(TASKS):
        parser.error(f"unknown tasks {sorted(unknown)}; known are {', '.join(TASKS)}")
    if arguments.smoke:
        arguments.rates, arguments.tasks, arguments.rounds = "1000", "transformer", 1
    return arguments


if __name__ == "__main__":
    main()
