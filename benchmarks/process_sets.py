"""Measures disjoint process sets of two ranks: 1, 2 and 4 at once, and one after the other.

    python benchmarks/process_sets.py

*Apart*, a set begins when the previous one has ended; *together*, all run at once. If the sets do
not slow each other down, the ratio of the total throughputs is the number of sets, which needs one
core per rank. With fewer cores the ranks of one set already use all of them. Then the overlap is
significant: the fraction of the time of one set's operations in which an operation of another set
was in progress, too. It is read from the timelines, which --picture draws.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from folders import temporary_folder

import horoscale.numpy as hvd
from horoscale.timeline import Span, read
from horoscale.timeline.steps import merged

AT_ONCE = (1, 2, 4)
RANKS = 2 * max(AT_ONCE)
SECONDS = 300
WINDOW_MS = 8  # of the picture of single operations
Spans = list[Span]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bytes", type=int, default=1 << 20, help="of each array (1 MiB)")
    parser.add_argument("--operations", type=int, default=200, help="of each set in a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the timelines")
    parser.add_argument("--smoke", action="store_true", help="smoke test: one short round")
    parser.add_argument("--rank-of", type=Path, help=argparse.SUPPRESS)  # this process is a rank
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.operations, arguments.rounds = 100, 1
    return arguments


def run_rank(arguments: argparse.Namespace) -> None:
    """Measure as one of the ranks; rank 0 writes the figures into the folder."""
    pairs = [hvd.ProcessSet([first, first + 1]) for first in range(0, RANKS, 2)]
    hvd.init(process_sets=pairs)
    own = hvd.rank() // 2
    array = np.ones(arguments.bytes // 4, np.float32)

    def work() -> None:
        for _ in range(arguments.operations):
            hvd.allreduce_(array, op=hvd.Average, name="x", process_set=pairs[own])

    def apart(sets: int) -> None:
        for turn in range(sets):
            if turn == own:
                work()
            hvd.barrier()

    def together(sets: int) -> None:
        if own < sets:
            work()
        hvd.barrier()

    together(len(pairs))  # warm-up
    figures: dict[str, Any] = {"cores": len(os.sched_getaffinity(0)), "rates": {}, "ratios": {}}
    for sets in AT_ONCE:
        rounds = [(seconds(apart, sets), seconds(together, sets)) for _ in range(arguments.rounds)]
        total = sets * arguments.operations * arguments.bytes
        figures["rates"][str(sets)] = [total / at_once for _, at_once in rounds]
        figures["ratios"][str(sets)] = [in_turn / at_once for in_turn, at_once in rounds]
    figures["spans"] = {
        way.__name__: executed(way, arguments.rank_of / f"{way.__name__}.{hvd.rank()}")
        for way in (apart, together)
    }
    if hvd.rank() == 0:
        (arguments.rank_of / "figures.json").write_text(json.dumps(figures))
    hvd.shutdown()


def seconds(work: Callable[[int], None], sets: int) -> float:
    hvd.barrier()
    begin = time.perf_counter()
    work(sets)
    return time.perf_counter() - begin


def executed(work: Callable[[int], None], path: Path) -> list[Spans]:
    """When the allreduces of each set ran, by the clock of the host, in microseconds."""
    hvd.barrier()
    hvd.start_timeline(str(path))
    work(max(AT_ONCE))
    hvd.stop_timeline()
    written = path if hvd.rank() == 0 else path.with_name(f"{path.name}.rank{hvd.rank()}")
    own = [
        (one.started * 1e6, one.done * 1e6)
        for one in read(written).operations
        if one.kind == "allreduce"
    ]
    return hvd.allgather_object(own)[::2]


def overlap(sets: list[Spans]) -> float:
    """The fraction of the first set's time that overlaps with another set's."""
    ones, others = sets[0], merged(span for spans in sets[1:] for span in spans)
    common = sum(
        max(0.0, min(end, other_end) - max(begin, other_begin))
        for begin, end in ones
        for other_begin, other_end in others
    )
    return common / sum(end - begin for begin, end in ones)


def draw(spans: dict[str, list[Spans]], file: Path) -> None:
    """Write a picture with a row for each set, in which a bar is one allreduce."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    begins = {way: min(begin for one in sets for begin, _ in one) for way, sets in spans.items()}
    ends = {way: max(end for one in sets for _, end in one) for way, sets in spans.items()}
    middle = (ends["together"] - begins["together"]) / 2e3
    panels = [
        ("apart", "one set after the other", None),
        ("together", "all at once", None),
        ("together", f"all at once, {WINDOW_MS} ms of it", (middle, middle + WINDOW_MS)),
    ]
    figure, axes = pyplot.subplots(len(panels), 1, figsize=(10, 6))
    for axis, (way, title, window) in zip(axes, panels, strict=True):
        for row, one in enumerate(spans[way]):
            bars = [((b - begins[way]) / 1e3, (e - b) / 1e3) for b, e in one]
            axis.broken_barh(bars, (row - 0.35, 0.7), color="#2b5d8a", edgecolor="white", lw=0.2)
        rows = range(len(spans[way]))
        axis.set_yticks(rows, [f"ranks {2 * row} and {2 * row + 1}" for row in rows])
        axis.invert_yaxis()
        axis.set_xlim(window or (0, max(ends[one] - begins[one] for one in spans) / 1e3))
        axis.set_title(title)
    axes[-1].set_xlabel("ms")
    figure.tight_layout()
    figure.savefig(file, dpi=100)
    pyplot.close(figure)


def main() -> None:
    arguments = parse_arguments()
    if arguments.rank_of:
        run_rank(arguments)
        return
    with temporary_folder() as folder:
        own_command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:]]
        launcher = [sys.executable, "-m", "horoscale.runner", "-np", str(RANKS)]
        command = [*launcher, *own_command, "--rank-of", folder]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        # In another folder than the sources, so that the installed package is measured.
        subprocess.run(command, check=True, timeout=SECONDS, env=environment, cwd=folder)
        figures = json.loads((folder / "figures.json").read_text())
    if arguments.json:
        arguments.json.write_text(json.dumps(figures))
    spans = figures["spans"]
    if arguments.picture:
        draw(spans, arguments.picture)
    print(f"{RANKS} ranks on {figures['cores']} cores, {arguments.bytes} bytes, sets of 2")
    for sets in AT_ONCE:
        rates, ratios = figures["rates"][str(sets)], figures["ratios"][str(sets)]
        print(
            f"{sets} at once: {statistics.median(rates) / 1e6:,.0f} MB/s in all; "
            "throughput together / apart: "
            f"{statistics.median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f})"
        )
    print(
        "time of the first set's operations that is also another's: "
        f"{overlap(spans['together']):.0%} together, {overlap(spans['apart']):.0%} apart"
    )


if __name__ == "__main__":
    main()
