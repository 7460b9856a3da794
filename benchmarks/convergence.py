"""Measures how soon training reaches a goal on a slow network, by the compression of gradients.

    python benchmarks/convergence.py --picture docs/images/convergence

Uses two hosts, which are network namespaces (requires root, ip and tc), with a link of the given
Mbit/s, and one rank with one thread on each. "ddp" is DistributedDataParallel over Gloo with
float32, "ddp-powersgd-2" its PowerSGD hook with rank 2, and so on. The others are
DistributedOptimizer with overlap_step=True and the compressor of this name: "topk" sends 1 %,
"adaptive-6" is hvd.Compression.adaptive(error=6), and "powersgd" has rank 4 and no overlap.

All train the same models with the same batches for the same number of steps, once for each seed:
"digits" are three convolutions on scikit-learn's digits, "gpt" is a transformer that predicts the
next character of Python's language reference. The measure is the share of held-out digits that are
not recognized, or the loss of held-out characters. Seconds are those of training; measuring is not
included.

The goal is the measure that float32 has after three quarters of the steps, as a mean over the
seeds. A run reaches it at its first measurement that is not worse.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from folders import temporary_folder
from ranks import Job

sys.path.append(str(Path(__file__).parents[1] / "tests" / "python"))
from support.namespaces import NetworkHosts, why_not

RANK_PROGRAM = Path(__file__).with_name("convergence_rank.py")
STEPS = {"digits": 100, "gpt": 200}
EXACT = "ddp"
POWERSGD = tuple(f"ddp-powersgd-{rank}" for rank in (1, 2, 4, 8))
OURS = ("none", "bf16", "int8", "int4", "onebit", "topk", "adaptive", "adaptive-6", "powersgd")
SMOKE = (EXACT, "adaptive")
FIRST_PORT = 29800  # no other program uses ports on these hosts
MEASURE_SECONDS = 600
GOAL_AT = 0.75  # of the steps

Curve = list[tuple[float, float]]  # seconds, and the measure
Curves = dict[str, list[Curve]]  # of each implementation, by seed


def main() -> None:
    arguments = parse()
    if reason := why_not():
        sys.exit(reason)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        hosts = stack.enter_context(NetworkHosts(2))
        hosts.limit_rate(f"{arguments.rate}mbit")
        jobs = []
        for port, name in enumerate(arguments.implementations, FIRST_PORT):
            job = Job(RANK_PROGRAM, name, 2, folder, folder, {}, hosts, port, MEASURE_SECONDS)
            stack.callback(job.end)
            jobs.append(job)
        measured = {}
        for task in arguments.tasks:
            steps = arguments.steps or STEPS[task]
            every = min(arguments.every, steps)
            measured[task] = interleave(jobs, task, arguments.seeds, steps, every, folder)
            where = f"{arguments.rate} Mbit/s, {os.cpu_count()} cores"
            print(f"{task}: {steps} steps, {arguments.seeds} seeds, 2 hosts, {where}")
            print("\n".join(report(measured[task])), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(measured))
    if arguments.picture:
        draw(measured, arguments.picture, f"{arguments.rate} Mbit/s")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=int, default=100, help="of the link, in Mbit/s")
    parser.add_argument("--tasks", default=",".join(STEPS), help="comma-separated")
    parser.add_argument(
        "--implementations",
        default=",".join((EXACT, *POWERSGD, *OURS)),
        help="comma-separated (default: %(default)s)",
    )
    parser.add_argument("--seeds", type=int, default=5, metavar="NUMBER")
    parser.add_argument("--steps", type=int, help=f"of a run (default: {STEPS})")
    parser.add_argument("--every", type=int, default=5, help="steps between measurements")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all curves")
    parser.add_argument("--picture", metavar="NAME", help="draw the curves as NAME.png and .svg")
    parser.add_argument("--smoke", action="store_true", help="smoke test: a few steps")
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.tasks, arguments.implementations = "digits", ",".join(SMOKE)
        arguments.seeds, arguments.steps, arguments.rate = 1, 10, 1000
    arguments.tasks = arguments.tasks.split(",")
    if unknown := set(arguments.tasks) - STEPS.keys():
        parser.error(f"unknown tasks {sorted(unknown)}; known are {', '.join(STEPS)}")
    arguments.implementations = arguments.implementations.split(",")
    if unknown := set(arguments.implementations) - {EXACT, *POWERSGD, *OURS}:
        parser.error(f"unknown implementations {sorted(unknown)}")
    if EXACT not in arguments.implementations:
        parser.error(f"{EXACT} is needed: it defines the goal")
    return arguments


def interleave(
    jobs: Sequence[Job], task: str, seeds: int, steps: int, every: int, folder: Path
) -> Curves:
    """Train with each seed, alternating the jobs; the curve of a run is that of rank 0."""
    curves: Curves = {job.name: [] for job in jobs}
    for seed in range(seeds):
        for job in jobs:
            files = [str(folder / f"curve-{rank}.json") for rank in range(2)]
            job.measure(task, seed, steps, every, files)
            curves[job.name].append(json.loads(Path(files[0]).read_text()))
    return curves


def goal_of(curves: Curves) -> float:
    """The mean measure of the exact gradients at GOAL_AT of the steps."""
    place = int(GOAL_AT * len(curves[EXACT][0])) - 1
    return statistics.mean(curve[place][1] for curve in curves[EXACT])


def seconds_to(goal: float, curve: Curve) -> float:
    """When a run reached the goal; infinity if it did not."""
    return next((seconds for seconds, measure in curve if measure <= goal), float("inf"))


def report(curves: Curves) -> Iterator[str]:
    """Lines of a table: the final measure, seconds to the goal, and a comparison with PowerSGD."""
    goal = goal_of(curves)
    ends = {name: [curve[-1][1] for curve in runs] for name, runs in curves.items()}
    times = {name: [seconds_to(goal, run) for run in runs] for name, runs in curves.items()}
    exact, deviation = statistics.mean(ends[EXACT]), deviation_of(ends[EXACT])
    yield f"goal: {goal:.4f}; float32 ends at {exact:.4f}, standard deviation {deviation:.4f}"
    medians = {name: statistics.median(each) for name, each in times.items()}
    best = min((name for name in curves if name in POWERSGD), key=medians.__getitem__, default=None)
    yield f"{'':>16}{'end: mean':>12}{'deviations':>12}{'all steps':>12}{'to the goal':>28}"
    for name, runs in curves.items():
        mean = statistics.mean(ends[name])
        away = (mean - exact) / deviation if deviation else 0.0
        whole = statistics.median(run[-1][0] for run in runs)
        line = f"{name:>16}{mean:12.4f}{away:12.2f}{whole:10.2f} s"
        line += f"{medians[name]:10.2f} ({min(times[name]):.2f} to "
        line += f"{max(times[name]):.2f}) s"
        if best and name != best:
            line += f"   {best} / it: {medians[best] / medians[name]:.2f}"
        yield line


def deviation_of(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def draw(measured: Mapping[str, Curves], name: str, link: str) -> None:
    """Draw the mean measure of each implementation over the mean time."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams["svg.hashsalt"] = "convergence"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(measured), figsize=(6 * len(measured), 5), squeeze=False)
    for axis, (task, curves) in zip(axes[0], measured.items(), strict=True):
        for implementation, runs in curves.items():
            points = list(zip(*runs, strict=True))
            axis.plot(
                [statistics.mean(seconds for seconds, _ in at) for at in points],
                [statistics.mean(measure for _, measure in at) for at in points],
                "--" if implementation.startswith("ddp") else "-",
                label=implementation,
            )
        axis.set_xscale("log")
        axis.set_xlabel("seconds of training")
        axis.set_ylabel("held-out loss" if task == "gpt" else "held-out digits not recognized")
        axis.set_title(f"{task}, {link}")
    axes[0][0].legend(fontsize=7)
    figure.tight_layout()
    for suffix in ("png", "svg"):
        metadata = {"Date": None} if suffix == "svg" else None
        figure.savefig(f"{name}.{suffix}", dpi=120, metadata=metadata)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
