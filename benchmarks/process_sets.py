"""Two disjoint process sets of two ranks: allreduce in both at once, and in one after the other.

    python benchmarks/process_sets.py

*Apart*, the second set begins when the first has ended; *together*, both do the same at once. The
ratio of the total throughputs is 2 where the sets cost each other nothing, which needs a core for
each of the four ranks. With fewer cores the ranks of one set use them all already; there the
overlap is what counts: the part of the time of one set's operations in which an operation of the
other set was under way too, from the timelines.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import horoscale.numpy as hvd

RANKS = 4
SECONDS = 300
Spans = list[tuple[float, float]]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bytes", type=int, default=1 << 20, help="of each array (1 MiB)")
    parser.add_argument("--operations", type=int, default=300, help="of each set in a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    parser.add_argument("--smoke", action="store_true", help="one short round: does it run?")
    parser.add_argument("--rank-of", type=Path, help=argparse.SUPPRESS)  # the ranks' own call
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.operations, arguments.rounds = 100, 1
    return arguments


def run_rank(arguments: argparse.Namespace) -> None:
    """Measure as one of the ranks; rank 0 writes the figures into the folder."""
    pairs = [hvd.ProcessSet([0, 1]), hvd.ProcessSet([2, 3])]
    hvd.init(process_sets=pairs)
    own = pairs[0] if pairs[0].included() else pairs[1]
    array = np.ones(arguments.bytes // 4, np.float32)

    def work() -> None:
        for _ in range(arguments.operations):
            hvd.allreduce_(array, op=hvd.Average, name="x", process_set=own)

    def apart() -> None:
        for pair in pairs:
            if pair is own:
                work()
            hvd.barrier()

    def together() -> None:
        work()
        hvd.barrier()

    together()  # warms up
    ratios = [seconds(apart) / seconds(together) for _ in range(arguments.rounds)]
    overlaps = {}
    for way in (apart, together):
        path = arguments.rank_of / f"timeline.{way.__name__}.{hvd.rank()}"
        spans = hvd.allgather_object(executed(way, path))
        overlaps[way.__name__] = overlap(spans[0], spans[2])
    if hvd.rank() == 0:
        cores = len(os.sched_getaffinity(0))
        figures = {"cores": cores, "ratios": ratios, "overlaps": overlaps}
        (arguments.rank_of / "figures.json").write_text(json.dumps(figures))
    hvd.shutdown()


def seconds(work: Callable[[], None]) -> float:
    hvd.barrier()
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def executed(work: Callable[[], None], path: Path) -> Spans:
    """When this rank's allreduces ran: on the clock of the host, in microseconds."""
    hvd.barrier()
    hvd.start_timeline(str(path))
    work()
    hvd.stop_timeline()
    written = path if hvd.rank() == 0 else path.with_name(f"{path.name}.rank{hvd.rank()}")
    events = json.loads(written.read_text())
    return [(e["ts"], e["ts"] + e["dur"]) for e in events if e["name"] == "allreduce"]


def overlap(ones: Spans, others: Spans) -> float:
    """The part of the time of `ones` that is in `others`; neither overlaps with itself."""
    common = sum(
        max(0.0, min(end, other_end) - max(begin, other_begin))
        for begin, end in ones
        for other_begin, other_end in others
    )
    return common / sum(end - begin for begin, end in ones)


def main() -> None:
    arguments = parse_arguments()
    if arguments.rank_of:
        run_rank(arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        own_command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:]]
        launcher = [sys.executable, "-m", "horoscale.runner", "-np", str(RANKS)]
        command = [*launcher, *own_command, "--rank-of", folder]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=True, timeout=SECONDS, env=environment)
        figures = json.loads((Path(folder) / "figures.json").read_text())
    if arguments.json:
        arguments.json.write_text(json.dumps(figures))
    ratios, overlaps = figures["ratios"], figures["overlaps"]
    print(f"{RANKS} ranks on {figures['cores']} cores, {arguments.bytes} bytes, in two sets of 2")
    print(
        "throughput together / apart: "
        f"{statistics.median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f})"
    )
    print(
        "time of set A's operations that is also set B's: "
        f"{overlaps['together']:.0%} together, {overlaps['apart']:.0%} apart"
    )


if __name__ == "__main__":
    main()
