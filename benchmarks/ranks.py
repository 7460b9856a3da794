"""The ranks of the implementations that a benchmark compares.

All are started together and wait, without using the machine, while one of them measures, so every
round compares them on the same machine in the same state.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from horoscale._core import StoreServer

MPIS = ("mpich", "openmpi")
# They meet in a file, or according to their own variables.
BARE = ("gloo", "nccl", "ddp", "mirrored", "one", "alone", "limit", "limit-shared", "memcpy", "tcp")
START_SECONDS = 120
MEASURE_SECONDS = 120
END_SECONDS = 10


def peer_python(peer: str, folder: Path) -> Path:
    """The Python of a virtual environment with mpi4py and this MPI, created if missing."""
    # A separate environment for each: the wheels of two MPIs overwrite each other's files.
    python = folder / peer / "bin" / "python"
    if not python.exists():
        print(f"installing {peer} and mpi4py into {folder / peer}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", folder / peer], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "numpy", "mpi4py", peer], check=True)
    return python


class Hosts(Protocol):
    """Other hosts for ranks: each has a network, and an interface eth0."""

    names: list[str]
    addresses: list[str]

    def command(self, host: int, *command: object) -> list[str]:
        """A command that runs on a host."""


class Job:
    """The ranks of one implementation, started and waiting for orders."""

    def __init__(
        self,
        program: Path,
        name: str,
        num_ranks: int,
        folder: Path,
        peer_venv: Path,
        variables: Mapping[str, str] | None = None,
        hosts: Hosts | None = None,
        port: int = 0,
        measure_seconds: float = MEASURE_SECONDS,
    ) -> None:
        """Start the ranks of a program that calls orders.serve(); wait until all are ready.

        With `hosts` each rank is on a separate one, and ours meet at this port of the first. An
        order that takes longer than `measure_seconds` is an error.
        """
        self.name = name
        self._hosts = hosts
        self._port = port
        self._measure_seconds = measure_seconds
        self._program = program
        self._extra = dict(variables or {})
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

    def measure(self, *order: Any) -> float:
        """Return the median over the calls of the slowest rank's seconds."""
        for connection in self._connections:
            connection.send(order)
        seconds = [self._receive(connection) for connection in self._connections]
        return statistics.median(map(max, zip(*seconds, strict=True)))

    def end(self) -> None:
        """End all ranks; kill those that have not connected, and those that do not respond."""
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.send(None)
            connection.close()
        if len(self._connections) < self._num_ranks:
            for process in self._processes:
                process.terminate()
        for process in self._processes:
            for end in (process.terminate, process.kill):
                try:
                    process.wait(END_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    end()
            process.wait()

    def _start(self, address: str, folder: Path, peer_venv: Path) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        if self.name in MPIS:
            python = peer_python(self.name, peer_venv)
            mpiexec = [python.with_name("mpiexec"), "-n", str(self._num_ranks)]
            if self.name == "openmpi":
                # Ranks may share cores here; Open MPI would bind each to a separate one.
                mpiexec += ["--oversubscribe", "--bind-to", "none"]
                environment["OMPI_ALLOW_RUN_AS_ROOT"] = "1"
                environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
            self._launch([*mpiexec, python, self._program, self.name, address], environment)
            return
        job = self._job_variables(folder)
        for rank in range(self._num_ranks):
            variables = {name: value.format(rank=rank) for name, value in job.items()}
            command = [sys.executable, str(self._program), self.name, address]
            if self._hosts:
                command = self._hosts.command(rank, *command)
                variables["HOROSCALE_HOSTNAME"] = self._hosts.names[rank]
                variables["GLOO_SOCKET_IFNAME"] = "eth0"
            self._launch(command, environment | variables)

    def _launch(self, command: Sequence[str | Path], environment: dict[str, str]) -> None:
        # A separate session: a signal to the benchmark must not kill MPI's ranks, which would leave
        # their files in /dev/shm.
        started = subprocess.Popen(command, env=environment, start_new_session=True)
        self._processes.append(started)

    def _job_variables(self, folder: Path) -> dict[str, str]:
        """The variables of a rank of Gloo or of ours: its rank, and where the others are."""
        size = str(self._num_ranks)
        if self.name in BARE or self.name.startswith("ddp-"):  # DDP with a hook
            own = folder / self.name
            return {"RANK": "{rank}", "WORLD_SIZE": size, "JOB_FILE": f"{own}.job"} | self._extra
        secret = secrets.token_hex(16)
        if self._hosts:
            rendezvous = f"{self._hosts.addresses[0]}:{self._port}"
        else:
            self._store = StoreServer("127.0.0.1", 0, secret)
            rendezvous = f"127.0.0.1:{self._store.port}"
        return {
            "HOROSCALE_RANK": "{rank}",
            "HOROSCALE_SIZE": size,
            "HOROSCALE_RENDEZVOUS": rendezvous,
            "HOROSCALE_RENDEZVOUS_SERVED": "0" if self._hosts else "1",
            "HOROSCALE_SECRET": secret,
        } | self._extra

    def _accept(self, listener: socket.socket) -> None:
        """Wait until every rank has connected, which it does after joining its job."""
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
            if connection.poll(self._measure_seconds):
                seconds: list[float] = connection.recv()
                return seconds
            state = f"took longer than {self._measure_seconds} s"
        except EOFError:
            state = "ended; its output is above"
        raise RuntimeError(f"{self.name}: a rank {state}")
