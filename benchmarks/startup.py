"""Measures how long a job takes to start, and how much memory its ranks need.

    python benchmarks/startup.py --np 2,8,32

A job is started with horoscalerun and only calls hvd.init() and hvd.shutdown(). It prints the time
of the whole job, the time of the slowest rank's init(), and the growth of a rank's resident memory
when it imports horoscale.numpy (numpy is already imported) and when it has called init(). Each
figure is the median over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from folders import temporary_folder

PHASES = ("job s", "init s", "import MiB", "init MiB")
SECONDS = 300


def resident_mib() -> float:
    """This process' resident memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def run_rank(folder: Path) -> None:
    """Start and end as one of the ranks, and write its figures to the folder."""
    import numpy  # noqa: F401

    plain = resident_mib()
    import horoscale.numpy as hvd

    imported = resident_mib()
    begin = time.perf_counter()
    hvd.init()
    figures = [time.perf_counter() - begin, imported - plain, resident_mib() - imported]
    (folder / str(hvd.rank())).write_text(json.dumps(figures))
    hvd.shutdown()


def measure(num_ranks: int) -> list[float]:
    """Start one job; return the values of PHASES, of the slowest or largest rank."""
    with temporary_folder() as folder:
        launcher = [sys.executable, "-m", "horoscale.runner", "-np", str(num_ranks)]
        command = [*launcher, sys.executable, os.path.abspath(__file__), "--rank-of", folder]
        begin = time.perf_counter()
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        # In another folder than the sources, so that the installed package is measured.
        subprocess.run(command, check=True, timeout=SECONDS, env=environment, cwd=folder)
        whole = time.perf_counter() - begin
        ranks = [json.loads(path.read_text()) for path in folder.iterdir()]
    assert len(ranks) == num_ranks
    return [whole, *map(max, zip(*ranks, strict=True))]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--np", default="2,8,32", help="numbers of ranks (default: 2,8,32)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures of every round"
    )
    parser.add_argument("--smoke", action="store_true", help="smoke test: two ranks, one round")
    parser.add_argument("--rank-of", type=Path, help=argparse.SUPPRESS)  # this process is a rank
    arguments = parser.parse_args()
    if arguments.rank_of:
        run_rank(arguments.rank_of)
        return
    numbers, rounds = [int(number) for number in arguments.np.split(",")], arguments.rounds
    if arguments.smoke:
        numbers, rounds = [2], 1
    figures: dict[int, dict[str, list[float]]] = {}
    print(f"start-up, {os.cpu_count()} cores, {rounds} rounds")
    print(f"{'ranks':>6}" + "".join(f"{phase:>12}" for phase in PHASES))
    for number in numbers:
        each = [measure(number) for _ in range(rounds)]
        columns = dict(zip(PHASES, map(list, zip(*each, strict=True)), strict=True))
        figures[number] = columns
        cells = "".join(f"{statistics.median(columns[phase]):12.2f}" for phase in PHASES)
        print(f"{number:>6}{cells}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
