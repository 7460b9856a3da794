"""What local SGD is worth on a network that is too slow for gradients.

    python benchmarks/local_sgd.py

Two hosts, made of network namespaces (which needs root, ip and tc), with a link of so many Mbit/s;
on each a rank with one thread. "gradients" is DistributedOptimizer, "gradients-int8" the same with
hvd.Compression.int8; "local-8" is DistributedOptimizer(sync_every=8), and its like. "alone" are two
ranks at once without communication, which nothing can beat.

A figure is the seconds of a step: of local SGD the mean over a whole number of rounds; then the
slowest rank's, then the median over the rounds of the benchmark. A ratio is that of one round's
times, with its range over the rounds. It says nothing of what a step of local SGD learns.
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
SMOKE = ("gradients", "local-8")  # a rank of torch takes seconds to start
PAIRS = [("gradients", "gradients-int8"), *(("gradients", name) for name in LOCAL)]
FIRST_PORT = 29600  # nobody else has ports on these hosts


class Steps(NamedTuple):
    """A figure: the seconds of a step of one job."""

    name: str
    job: Job
    count: int  # at least so many are measured at once

    def measure(self, task: str) -> float:
        """Return the mean over steps, as many as are whole rounds of local SGD."""
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
