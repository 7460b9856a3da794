"""The processes of one job, started without the launcher, so that tests control their deaths."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, TypeVar

from support.namespaces import NetworkHosts
from support.ranks import clean_environment

from horoscale._core import StoreServer

T = TypeVar("T")


class RankProcesses:
    """One Python program on `size` ranks. As a context it leaves no process behind.

    They are on this host, or on separate hosts; then the job's store is on the first of these.
    """

    def __init__(
        self,
        size: int,
        program: Path,
        *arguments: str,
        folder: Path,
        variables: Mapping[str, str] | None = None,
        variables_of: Mapping[int, Mapping[str, str]] | None = None,
        stderr_of: Mapping[int, str] | None = None,
        hosts: NetworkHosts | None = None,
        host_of: Sequence[int] = (),
    ) -> None:
        """Start `program` with its temporary files and its own in `folder`.

        `variables` is the environment of all ranks, besides a job's own. By rank, `variables_of`
        adds more, `stderr_of` redirects standard error to a file, and `host_of` is the index of
        its host in `hosts`.
        """
        self.secret = secrets.token_hex(16)
        self._hosts = hosts
        self.address = "127.0.0.1" if hosts is None else hosts.addresses[0]
        encrypt = (variables or {}).get("HOROSCALE_ENCRYPT") == "1"
        self._store = self.call(lambda: StoreServer(self.address, 0, self.secret, encrypt=encrypt))
        self.port = self._store.port
        variables, variables_of, stderr_of = variables or {}, variables_of or {}, stderr_of or {}
        self._files = contextlib.ExitStack()
        self._errors: list[IO[bytes]] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        for rank in range(size):
            errors = open(stderr_of[rank], "wb") if rank in stderr_of else tempfile.TemporaryFile()  # noqa: SIM115
            self._errors.append(self._files.enter_context(errors))
            command = [sys.executable, str(program), *arguments]
            placed: dict[str, str] = {}
            if hosts is not None:
                command = hosts.command(host_of[rank], *command)
                placed = {"HOROSCALE_HOSTNAME": hosts.names[host_of[rank]]}
            self.processes.append(
                subprocess.Popen(
                    command,
                    cwd=folder,
                    env={
                        **clean_environment(),
                        **self._variables(rank, size, folder),
                        **placed,
                        **variables,
                        **variables_of.get(rank, {}),
                    },
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=self._errors[-1],
                )
            )

    def _variables(self, rank: int, size: int, folder: Path) -> dict[str, str]:
        return {
            "HOROSCALE_RANK": str(rank),
            "HOROSCALE_SIZE": str(size),
            "HOROSCALE_RENDEZVOUS": f"{self.address}:{self.port}",
            "HOROSCALE_RENDEZVOUS_SERVED": "1",
            "HOROSCALE_SECRET": self.secret,
            "TMPDIR": str(folder),
            "OMP_NUM_THREADS": "1",
        }

    def call(self, function: Callable[[], T]) -> T:
        """Call a function on the host of the job's store."""
        return function() if self._hosts is None else self._hosts.call(0, function)

    def read_line(self, rank: int, seconds: float) -> str:
        """The next line that the rank prints; AssertionError if it ends or on timeout."""
        output = self.processes[rank].stdout
        assert output is not None
        line = bytearray()
        deadline = time.monotonic() + seconds
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([output], [], [], max(0.0, deadline - time.monotonic()))
            byte = os.read(output.fileno(), 1) if ready else b""
            assert byte, f"rank {rank} printed {line!r} and no more; {self.errors(rank)}"
            line += byte
        return line.decode().rstrip("\n")

    def wait(self, rank: int, seconds: float) -> None:
        """Wait until the rank succeeds; otherwise AssertionError with its messages."""
        try:
            status = self.processes[rank].wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"rank {rank} runs still; {self.errors(rank)}") from None
        assert status == 0, f"rank {rank} ended with {status}; {self.errors(rank)}"

    def errors(self, rank: int) -> str:
        """The rank's standard error."""
        if not self._errors[rank].readable():
            return "its messages are lost"
        self._errors[rank].seek(0)
        return f"its messages: {self._errors[rank].read().decode(errors='replace')}"

    def survivors(self) -> list[int]:
        """PIDs of the processes with this job's secret in their environment."""
        mine = f"HOROSCALE_SECRET={self.secret}".encode()
        found = []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mine in environ.read_bytes():
                    found.append(int(environ.parent.name))
            except OSError:  # it has ended, or belongs to another user
                continue
        return found

    def __enter__(self) -> RankProcesses:
        """Return the job."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Kill the remaining processes."""
        for process in self.processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        self._files.close()
        self._store.close()
