"""Measures the benefit of priorities and overlap across steps on a slow network.

    python benchmarks/overlap.py

Uses two hosts, which are network namespaces (requires root, ip and tc), with a link of the given
Mbit/s, and one rank with one thread on each. "fifo" is DistributedOptimizer with
HOROSCALE_SCHEDULER=fifo. "priority" uses priorities and overlap_step=True, and "-bf16"
hvd.Compression.bf16. "int8" and similar names use that compression, "topk" sends 1 %, and
"adaptive-6" is hvd.Compression.adaptive(error=6). "ddp-fp16" and "ddp-powersgd" are hooks of
DistributedDataParallel, and "powersgd" is hvd.Compression.powersgd(4), without overlap_step.

A step computes for "compute" (two ranks at once without communication), of which "forward" is the
forward pass. Reducing its gradients takes "communication" if nothing else runs. The shortest step
is then max(compute, communication) if communication overlaps with the whole next step, and forward
+ max(compute - forward, communication) if it overlaps with the backward pass only. The second
divided by the first is the upper bound of fifo / priority.

A figure is the slowest rank's time: the time of all steps of a round divided by their number, then
the median over the rounds. Overlapped steps are finished before the clock starts and before it
stops. A ratio compares times of one round, with its range over the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import figures
from folders import temporary_folder
from ranks import Job

sys.path.append(str(Path(__file__).parents[1] / "tests" / "python"))
from support.namespaces import NetworkHosts, why_not

RANK_PROGRAM = Path(__file__).with_name("overlap_rank.py")
TASKS = ("transformer", "vgg")
FIFO = {"HOROSCALE_SCHEDULER": "fifo"}
JOBS = {"alone": {}, "ddp": {}, "fifo": FIFO, "priority": {}, "priority-bf16": {}}
# With --compression: lossy encodings, and DDP's hooks for slow networks.
COMPRESSED: dict[str, dict[str, str]] = {
    name: {}
    for name in (
        *("int8", "int4", "onebit", "topk", "adaptive", "adaptive-6"),
        *("powersgd", "ddp-fp16", "ddp-powersgd"),
    )
}
NEEDED = ("alone", "fifo")  # for the ideal
SMOKE = ("alone", "fifo", "priority")  # ranks with torch take seconds to start
PAIRS = (
    ("fifo", "priority"),
    ("ideal", "priority"),
    ("ddp", "priority"),
    ("ddp", "fifo"),
    ("ddp", "priority-bf16"),
    ("priority", "adaptive"),
    ("priority", "adaptive-6"),
    ("ddp-powersgd", "adaptive"),
    ("ddp-powersgd", "adaptive-6"),
    ("ddp-powersgd", "powersgd"),
)
CHANGING = (1000, 100, 1000)  # Mbit/s
CHOICE_STEPS = 30  # at each of these rates
FIRST_PORT = 29400  # no other program uses ports on these hosts


class Measured(NamedTuple):
    """A figure that one job measures."""

    name: str
    job: Job
    what: str

    def measure(self, *order: Any) -> float:
        """Return the median over the calls of the slowest rank's seconds."""
        return self.job.measure(self.what, *order)


def main() -> None:
    arguments = parse()
    if reason := why_not():
        sys.exit(reason)
    rates = [int(rate) for rate in arguments.rates.split(",")]
    tasks = arguments.tasks.split(",")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        hosts = stack.enter_context(NetworkHosts(2))
        if arguments.congestion_control:
            hosts.set_congestion_control(arguments.congestion_control)
        jobs = {}
        known = JOBS | COMPRESSED
        for port, name in enumerate(arguments.implementations, FIRST_PORT):
            jobs[name] = Job(RANK_PROGRAM, name, 2, folder, folder, known[name], hosts, port)
            stack.callback(jobs[name].end)
        measured: figures.Figures = {}
        for rate in rates:
            hosts.limit_rate(f"{rate}mbit")
            cases = {f"{task} {rate}": (task, arguments.steps) for task in tasks}
            measured |= figures.interleave(figures_of(jobs), cases, arguments.rounds)
        report(measured, arguments.rounds)
        figures.write(arguments.json, measured, np=2)
        if arguments.timelines:
            record(arguments.timelines, jobs, tasks[-1], f"{rates[-1]} Mbit/s")
        if arguments.choices:
            steps = 2 if arguments.smoke else CHOICE_STEPS
            record_choices(arguments.choices, jobs["adaptive"], hosts, tasks[-1], steps, folder)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rates", default="200,1000", help="bandwidth of the link in Mbit/s")
    parser.add_argument("--tasks", default=",".join(TASKS), help="comma-separated")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12, help="steps in a round (default: 12)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures of every round"
    )
    parser.add_argument(
        "--timelines",
        metavar="NAME",
        help="write pictures of a step of the last task and rate to NAME.png and NAME.svg",
    )
    parser.add_argument(
        "--choices",
        metavar="NAME",
        help="write pictures of what adaptive compression chooses for the last task at "
        f"{', '.join(map(str, CHANGING))} Mbit/s to NAME.png and NAME.svg",
    )
    parser.add_argument(
        "--compression",
        action="store_true",
        help="also lossy compression, and DDP's hooks for fp16 and PowerSGD (rank 4)",
    )
    parser.add_argument(
        "--implementations",
        metavar="NAMES",
        help=f"comma-separated, besides {' and '.join(NEEDED)}: {', '.join(JOBS | COMPRESSED)}",
    )
    parser.add_argument(
        "--congestion-control", metavar="NAME", help="of the hosts' TCP (default: reno)"
    )
    parser.add_argument("--smoke", action="store_true", help="smoke test: one short round")
    arguments = parser.parse_args()
    if unknown := set(arguments.tasks.split(",")) - set(TASKS):
        parser.error(f"unknown tasks {sorted(unknown)}; known are {', '.join(TASKS)}")
    given = arguments.implementations.split(",") if arguments.implementations else []
    if arguments.smoke:
        arguments.rates, arguments.tasks, arguments.rounds = "1000", "transformer", 1
        chosen = [*SMOKE, *given]
    elif given:
        chosen = list(dict.fromkeys([*NEEDED, *given]))
    else:
        chosen = [*JOBS, *(COMPRESSED if arguments.compression else ())]
    if arguments.choices and "adaptive" not in chosen:
        chosen.append("adaptive")
    if unknown := set(chosen) - (JOBS | COMPRESSED).keys():
        parser.error(f"unknown implementations {sorted(unknown)}")
    arguments.implementations = chosen
    return arguments


def figures_of(jobs: dict[str, Job]) -> list[Measured]:
    """The steps of each job, and the figures for the ideal."""
    return [
        Measured("forward", jobs["alone"], "forward"),
        Measured("compute", jobs["alone"], "step"),
        Measured("communication", jobs["fifo"], "communication"),
        *(Measured(name, job, "step") for name, job in jobs.items() if name != "alone"),
    ]


def ideals(rounds: figures.Rounds) -> figures.Rounds:
    """The shortest steps with overlap across steps ("ideal") and without, round by round."""
    parts = [rounds[name] for name in ("forward", "compute", "communication")]
    return {
        "ideal": [max(step, sent) for _, step, sent in zip(*parts, strict=True)],
        "ideal-fifo": [f + max(step - f, sent) for f, step, sent in zip(*parts, strict=True)],
    }


def share_of_ideal(rounds: figures.Rounds) -> tuple[list[float], list[float]]:
    """The upper bound of fifo / priority, and the fraction reached, round by round."""
    rounds = rounds | ideals(rounds)
    possible = figures.ratios(rounds, "ideal-fifo", "ideal")
    reached = figures.ratios(rounds, "fifo", "priority")
    return possible, [one / other for one, other in zip(reached, possible, strict=True)]


def report(measured: figures.Figures, num_rounds: int) -> None:
    """Print times and ratios, and the fraction of the ideal ratio that was reached."""
    print(f"a training step, 2 hosts, {os.cpu_count()} cores, {num_rounds} rounds")
    print("\n".join(figures.medians(measured, "ms", 1e3)))
    complete = {case: rounds | ideals(rounds) for case, rounds in measured.items()}
    print("\n".join(figures.comparison(complete, PAIRS)))
    for case, rounds in measured.items():
        if "priority" not in rounds:
            continue
        possible, share = share_of_ideal(rounds)
        print(f"{case}: at best {figures.spread(possible)}; of it reached {figures.spread(share)}")


def record(name: str, jobs: dict[str, Job], task: str, link: str) -> None:
    """Draw steps of both ways to order gradients."""
    import timelines

    recorded: Sequence[tuple[str, Path]] = [
        (job, Path(f"{name}-{job}.json").absolute()) for job in ("fifo", "priority")
    ]
    for job, path in recorded:
        jobs[job].measure("timeline", task, str(path))
    timelines.draw(recorded, [f"{name}.png", f"{name}.svg"], f"{task}, {link}")
    for _, path in recorded:
        path.unlink()
        path.with_suffix(".phases").unlink()


def record_choices(
    name: str, job: Job, hosts: NetworkHosts, task: str, steps: int, folder: Path
) -> None:
    """Draw the choices for steps during which the rate of the link changes."""
    import choices

    recorded = []
    for index, rate in enumerate(CHANGING):
        hosts.limit_rate(f"{rate}mbit")
        path = folder / f"choices-{index}.json"
        job.measure("choices", task, [str(path), steps])
        recorded.append((rate, path))
    choices.draw(recorded, [f"{name}.png", f"{name}.svg"], f"{task}, adaptive compression")


if __name__ == "__main__":
    main()
