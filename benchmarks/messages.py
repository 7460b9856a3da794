"""Measures a message from one rank to another, compared with Gloo and MPICH.

    python benchmarks/messages.py --peers gloo,mpich,memcpy --peer-venv .venv-peers

Two ranks send a message back and forth with blocking calls; a figure is half of that time. The
ranks of all implementations are started together and wait while one of them measures. A figure is
the median over the calls of a round, then the median over the rounds. A ratio is the peer's time
divided by ours, with its range. horoscale-shared sends from and receives into shared memory.
horoscale-view sends from there and reads the message there. memcpy is not a message: each rank
copies the same number of bytes. mpich is installed from PyPI into --peer-venv on request. Results
are checked.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path

import figures
from allreduce import Timed, size_text
from folders import temporary_folder
from ranks import Job

OURS = ("horoscale", "horoscale-shared", "horoscale-view")
PEERS = ("gloo", "mpich", "memcpy")
SIZES = (4, 4 << 10, 64 << 10, 1 << 20, 16 << 20)
RANK_PROGRAM = Path(__file__).with_name("messages_rank.py")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", default="gloo,memcpy", help=f"of {', '.join(PEERS)}")
    parser.add_argument("--peer-venv", type=Path, default=Path(".venv-peers"), metavar="DIR")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures of every round"
    )
    parser.add_argument("--smoke", action="store_true", help="smoke test: two sizes, one round")
    arguments = parser.parse_args()
    arguments.peers = [peer for peer in arguments.peers.split(",") if peer]
    if unknown := set(arguments.peers) - set(PEERS):
        parser.error(f"unknown peers {sorted(unknown)}; known are {', '.join(PEERS)}")
    arguments.sizes = (4 << 10, 1 << 20) if arguments.smoke else SIZES
    if arguments.smoke:
        arguments.rounds = 1
    return arguments


def main() -> None:
    arguments = parse_arguments()
    cases = {size_text(size): (size,) for size in arguments.sizes}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        jobs = []
        for name in (*OURS, *arguments.peers):
            jobs.append(Job(RANK_PROGRAM, name, 2, folder, arguments.peer_venv))
            stack.callback(jobs[-1].end)
        measured = figures.interleave([Timed(job) for job in jobs], cases, arguments.rounds)
    print(f"one way between 2 ranks, {os.cpu_count()} cores, {arguments.rounds} rounds")
    print("\n".join(figures.medians(measured, "µs", 1e6)))
    pairs = [(peer, ours) for peer in arguments.peers for ours in OURS]
    print("\n".join(figures.comparison(measured, pairs)))
    figures.write(arguments.json, measured)


if __name__ == "__main__":
    main()
