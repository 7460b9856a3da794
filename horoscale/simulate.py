"""Simulates the control plane of a large job: `python -m horoscale.simulate --help`.

The runtime's own classes make the decisions. The links between the ranks are a model.
docs/scaling.md describes the method and the results.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from horoscale.sim import JobModel, JobSimulation, StepCost

HEADINGS = (
    "ranks",
    "shape",
    "step",
    "time ms",
    "messages",
    "in hosts",
    "MB",
    "coordinator: messages",
    "core ms",
    "last rank: core us",
)


@dataclass(frozen=True)
class Result:
    """The steps of one job: the first, and the median (by time) of those that hit the cache."""

    ranks: int
    shape: str
    cold: StepCost
    cached: StepCost


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m horoscale.simulate",
        description=__doc__.split("\n\n")[1],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--ranks", type=int, nargs="+", default=[16384], metavar="N", help="job sizes to simulate")
    add(
        "--shape",
        nargs="+",
        choices=("flat", "tree"),
        default=["flat", "tree"],
        help="path of reports",
    )
    add("--ranks-per-host", type=int, default=8, help="in the tree; ignored for flat")
    add("--fan-out", type=int, default=16, help="hosts below each host in the tree")
    add("--tensors", type=int, default=160, help="allreduces per step")
    add("--tensor-kib", type=int, default=256, help="size of each tensor")
    add("--steps", type=int, default=5, help="steps after the first one; their median is shown")
    add("--link-us", type=float, default=5.0, help="latency of a link")
    add("--message-us", type=float, default=0.5, help="CPU time per message at each end")
    add("--gbit", type=float, default=100.0, help="bandwidth of a rank's network interface")
    add("--jitter-us", type=float, default=0.0, help="random delay of each rank's step")
    add("--seed", type=int, default=1, help="seed of the jitter")
    add("--no-core-time", action="store_true", help="count only messages, not the core's CPU time")
    add("--plot", type=Path, action="append", default=[], metavar="FILE", help="PNG, SVG or PDF")
    options = parser.parse_args(arguments)
    if min(options.ranks) < 1 or options.tensors < 1 or options.steps < 1:
        parser.error("--ranks, --tensors and --steps must be at least 1")
    if options.ranks_per_host < 1 or options.fan_out < 1:
        parser.error("--ranks-per-host and --fan-out must be at least 1")
    if options.gbit <= 0:
        parser.error("--gbit must be greater than 0")
    return options


def simulate(options: argparse.Namespace, ranks: int, shape: str) -> Result:
    """Run one job: a cold step and `options.steps` cached ones."""
    model = JobModel()
    model.ranks = ranks
    model.ranks_per_host = options.ranks_per_host if shape == "tree" else 0
    model.fan_out = options.fan_out
    model.tensors = options.tensors
    model.tensor_bytes = options.tensor_kib * 1024
    model.link_seconds = options.link_us * 1e-6
    model.message_seconds = options.message_us * 1e-6
    model.bytes_per_second = options.gbit * 1e9 / 8
    model.jitter_seconds = options.jitter_us * 1e-6
    model.seed = options.seed
    model.measure = not options.no_core_time
    job = JobSimulation(model)
    cold = job.step()
    cached = [job.step() for _ in range(options.steps)]
    middle = statistics.median_low(step.seconds for step in cached)
    return Result(ranks, shape, cold, next(step for step in cached if step.seconds == middle))


def rows(result: Result) -> list[tuple[str, ...]]:
    """Return the two lines of the table, with the columns of HEADINGS."""
    return [
        (
            f"{result.ranks}",
            result.shape,
            name,
            f"{cost.seconds * 1e3:.3f}",
            f"{cost.messages}",
            f"{cost.local_messages}",
            f"{cost.bytes / 1e6:.3f}",
            f"{cost.coordinator_messages}",
            f"{cost.coordinator_core_seconds * 1e3:.3f}",
            f"{cost.member_core_seconds * 1e6:.1f}",
        )
        for name, cost in (("cold", result.cold), ("cached", result.cached))
    ]


def print_table(lines: list[tuple[str, ...]]) -> None:
    """Print a table: with rich if on a terminal and installed, otherwise in columns."""
    if sys.stdout.isatty() and importlib.util.find_spec("rich"):
        from rich.console import Console
        from rich.table import Table

        table = Table()
        for heading in HEADINGS:
            table.add_column(heading, justify="right")
        for line in lines:
            table.add_row(*line)
        Console().print(table)
        return
    widths = [max(len(line[i]) for line in [HEADINGS, *lines]) for i in range(len(HEADINGS))]
    for line in [HEADINGS, *lines]:
        print("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)))


def plot(results: list[Result], files: Sequence[Path], title: str) -> None:
    """Plot the time of a step by ranks; both axes are logarithmic."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "horoscale"  # reproducible output
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 4), layout="constrained")
    for shape, color in (("flat", "tab:red"), ("tree", "tab:blue")):
        jobs = [result for result in results if result.shape == shape]
        ranks = [result.ranks for result in jobs]
        for name, style in (("cold", "o--"), ("cached", "o-")):
            times = [getattr(result, name).seconds * 1e3 for result in jobs]
            if jobs:
                axes.plot(ranks, times, style, color=color, label=f"{shape}, {name}")
    axes.set(xscale="log", yscale="log", xlabel="ranks", ylabel="step, ms", title=title)
    axes.grid(which="major", alpha=0.3)
    axes.legend()
    for file in files:
        figure.savefig(file, dpi=110, metadata={"Date": None} if file.suffix == ".svg" else None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate the jobs of the command line and print a table; return 0."""
    options = parse_arguments(arguments)
    if options.plot and not importlib.util.find_spec("matplotlib"):
        print("--plot needs matplotlib: pip install matplotlib", file=sys.stderr)
        return 2
    results = [simulate(options, n, shape) for n in options.ranks for shape in options.shape]
    print_table([line for result in results for line in rows(result)])
    if options.plot:
        title = f"Control plane, {options.tensors} tensors, links of {options.link_us:g} us"
        plot(results, options.plot, title)
    return 0


if __name__ == "__main__":
    sys.exit(main())
