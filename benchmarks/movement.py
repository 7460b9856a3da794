"""Measures the collectives that move rows, compared with other libraries.

    python benchmarks/movement.py --np 2 --peers gloo,mpich --peer-venv .venv-peers

All results go to existing memory (`out=`). horoscale is measured on the user's memory, on memory
that the ranks share, and as horoscale-new with newly allocated results. A size is that of a rank's
larger side: the result of allgather, the input of reducescatter and alltoall, both for broadcast.
Ranks are started, interleaved and compared as in benchmarks/allreduce.py.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
from pathlib import Path

import figures
from allreduce import Timed, size_text
from folders import temporary_folder
from ranks import MPIS, Job

OPERATIONS = ("allgather", "reducescatter", "alltoall", "broadcast")
OURS = ("horoscale", "horoscale-shared", "horoscale-new")
PEERS = ("gloo", *MPIS)
SIZES = (64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
RANK_PROGRAM = Path(__file__).with_name("movement_rank.py")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--np", type=int, default=2, help="ranks (default: 2)")
    parser.add_argument("--peers", default="", help=f"comma-separated, of {', '.join(PEERS)}")
    parser.add_argument("--peer-venv", type=Path, default=Path(".venv-peers"), metavar="DIR")
    parser.add_argument("--operations", default=",".join(OPERATIONS), help="comma-separated")
    parser.add_argument("--sizes", help="bytes, comma-separated (default: 64 KiB to 16 MiB)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures of every round"
    )
    parser.add_argument("--smoke", action="store_true", help="smoke test: one size, one round")
    arguments = parser.parse_args()
    arguments.peers = [peer for peer in arguments.peers.split(",") if peer]
    arguments.operations = arguments.operations.split(",")
    if unknown := set(arguments.peers) - set(PEERS):
        parser.error(f"unknown peers {sorted(unknown)}; known are {', '.join(PEERS)}")
    if unknown := set(arguments.operations) - set(OPERATIONS):
        parser.error(f"unknown operations {sorted(unknown)}; known are {', '.join(OPERATIONS)}")
    sizes = arguments.sizes
    arguments.sizes = [int(size) for size in sizes.split(",")] if sizes else list(SIZES)
    if any(size < 1 or size % (4 * arguments.np) for size in arguments.sizes):
        parser.error("--sizes: every rank's part is a multiple of 4 bytes")
    if arguments.smoke:
        arguments.sizes, arguments.rounds = [64 << 10], 1
    return arguments


def main() -> None:
    arguments = parse_arguments()
    cases = {
        f"{operation} {size_text(size)}": (operation, size // 4)
        for operation in arguments.operations
        for size in arguments.sizes
    }
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        jobs = []
        for name in (*OURS, *arguments.peers):
            jobs.append(Job(RANK_PROGRAM, name, arguments.np, folder, arguments.peer_venv))
            stack.callback(jobs[-1].end)
        measured = figures.interleave([Timed(job) for job in jobs], cases, arguments.rounds)
    print(
        f"movement of float32, {arguments.np} ranks, {os.cpu_count()} cores,"
        f" {arguments.rounds} rounds"
    )
    print("\n".join(figures.medians(measured, "µs", 1e6)))
    if arguments.peers:
        pairs = [(peer, own) for peer in arguments.peers for own in OURS]
        print("\n".join(figures.comparison(measured, pairs)))
        for peer, own in pairs:
            means = figures.mean_ratios(list(measured.values()), peer, own)
            print(f"all cases, geometric mean   {peer} / {own}: {statistics.median(means):.2f}")
    figures.write(arguments.json, measured, np=arguments.np)


if __name__ == "__main__":
    main()
