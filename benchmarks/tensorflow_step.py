"""Measures a training step in TensorFlow, compared with tf.distribute and with no communication.

    python benchmarks/tensorflow_step.py --np 2

A step is one of a loop in eager mode, of a loop in a tf.function, or of Keras' fit(). "one" is a
single process with one rank's batch. "alone" are as many processes as there are ranks, which train
independently: the upper bound if they share the machine's cores and memory. "mirrored" is
MultiWorkerMirroredStrategy, in loops only. Keras' fit() does not support it, so fit() is compared
with its tf.function. Every rank has one compute thread. In each round all are measured alternately.
A figure is the slowest rank's time: the median over the steps, then the median over the rounds. A
ratio compares times of one round, with its range over the rounds: mirrored/horoscale is how much
faster horoscale is, and alone/horoscale is the fraction of the upper bound that it reaches (1:
all).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from folders import temporary_folder
from ranks import Job

TASKS = ("perceptron", "convolutions", "transformer")
MODES = ("eager", "function", "fit")
NAMES = ("one", "alone", "mirrored", "horoscale")
RANK_PROGRAM = Path(__file__).with_name("tensorflow_step_rank.py")

# By task and mode, then by name, one for each round.
Figures = dict[str, dict[str, list[float]]]


def free_addresses(count: int) -> list[str]:
    """Free addresses of this host."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]


def start(name: str, num_ranks: int, folder: Path) -> Job:
    if name == "one":
        return Job(RANK_PROGRAM, name, 1, folder, folder)
    workers = {"WORKERS": ",".join(free_addresses(num_ranks))} if name == "mirrored" else {}
    return Job(RANK_PROGRAM, name, num_ranks, folder, folder, workers)


def run(
    jobs: Sequence[Job], tasks: Sequence[str], modes: Sequence[str], rounds: int, steps: int
) -> Figures:
    """Measure each task and mode `rounds` times, all in turn."""
    figures: Figures = {}
    for task in tasks:
        for mode in modes:
            seconds: dict[str, list[float]] = {job.name: [] for job in jobs}
            for index in range(rounds):
                first = index % len(jobs)  # a different one begins in each round
                for job in [*jobs[first:], *jobs[:first]]:
                    # Keras' fit() does not support MultiWorkerMirroredStrategy.
                    own = "function" if (job.name, mode) == ("mirrored", "fit") else mode
                    seconds[job.name].append(job.measure(task, own, steps))
            figures[f"{task} {mode}"] = seconds
    return figures


def table(figures: Figures) -> Iterator[str]:
    """Lines of the result."""
    yield f"{'ms':>22}" + "".join(f"{name:>12}" for name in NAMES)
    for what, rounds in figures.items():
        cells = "".join(f"{statistics.median(rounds[name]) * 1e3:12,.1f}" for name in NAMES)
        yield f"{what:>22}{cells}"
    yield ""
    yield "ratios of times: median (range over the rounds)"
    for what, rounds in figures.items():
        for peer in ("mirrored", "alone"):
            each = [a / b for a, b in zip(rounds[peer], rounds["horoscale"], strict=True)]
            name = f"{peer} / horoscale"
            middle = statistics.median(each)
            yield f"{what:>22}   {name:<21} {middle:.2f} ({min(each):.2f} to {max(each):.2f})"


def chosen(parser: argparse.ArgumentParser, text: str, known: Sequence[str]) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(known):
        parser.error(f"unknown: {sorted(unknown)}; known are {', '.join(known)}")
    return names


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--np", type=int, default=2, help="ranks (default: 2)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="steps in a round (default: 8)")
    parser.add_argument("--tasks", default=",".join(TASKS), help="comma-separated")
    parser.add_argument("--modes", default=",".join(MODES), help="comma-separated")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures of every round"
    )
    arguments = parser.parse_args()
    tasks = chosen(parser, arguments.tasks, TASKS)
    modes = chosen(parser, arguments.modes, MODES)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        jobs = []
        for name in NAMES:
            jobs.append(start(name, arguments.np, folder))
            stack.callback(jobs[-1].end)
        figures = run(jobs, tasks, modes, arguments.rounds, arguments.steps)
    print(f"a step, {arguments.np} ranks, {os.cpu_count()} cores, {arguments.rounds} rounds")
    print("\n".join(table(figures)))
    if arguments.json:
        arguments.json.write_text(json.dumps({"np": arguments.np, "seconds": figures}, indent=1))


if __name__ == "__main__":
    main()
