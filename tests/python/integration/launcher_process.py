"""horoscalerun as a process under test: its output, its end, and what it leaves behind."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import horoscale

PACKAGE_ROOT = Path(horoscale.__file__).resolve().parents[1]
PATIENCE_S = 60.0  # for events that take milliseconds on an idle machine

_MARKER = "LAUNCHER_TEST_MARKER"


def launcher_command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "horoscale.runner", *map(str, arguments)]


def environment(extra: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """The environment of a launcher: without a job's variables, and able to import horoscale.

    A variable that is None in `extra` is unset.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HOROSCALE_", "HOROVOD_"))
    }
    path = os.pathsep.join([str(PACKAGE_ROOT), *filter(None, [inherited.get("PYTHONPATH")])])
    variables = {**inherited, "PYTHONPATH": path, **(extra or {})}
    return {name: value for name, value in variables.items() if value is not None}


def run_launcher(
    *arguments: object, env: Mapping[str, str | None] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Runs a job to its end."""
    return subprocess.run(
        launcher_command(*arguments),
        env=environment(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE_S,
    )


class Launcher:
    """A running job. As a context it leaves no process behind, whatever the test does."""

    def __init__(
        self,
        *arguments: object,
        env: Mapping[str, str | None] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        self._marker = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [*prefix, *launcher_command(*arguments)],
            env=environment({**(env or {}), _MARKER: self._marker}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        self._stdout = self.process.stdout.fileno()
        self._buffer = b""

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.communicate()

    def read_lines(self, count: int) -> list[bytes]:
        """The next lines of its standard output, with their prefixes."""
        self._read_until(lambda: self._buffer.count(b"\n") >= count)
        *lines, self._buffer = self._buffer.split(b"\n", count)
        return lines

    def read_bytes(self, count: int) -> bytes:
        """The next bytes of its standard output."""
        self._read_until(lambda: len(self._buffer) >= count)
        data, self._buffer = self._buffer[:count], self._buffer[count:]
        return data

    def read_pids(self, count: int) -> list[int]:
        """The PIDs that the job prints, one in each of the next lines."""
        return [int(line.rsplit(b":", 1)[1]) for line in self.read_lines(count)]

    def _read_until(self, enough: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not enough():
            remaining = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._stdout], [], [], remaining)
            assert ready, f"only {self._buffer!r} within {PATIENCE_S} s"
            data = os.read(self._stdout, 65536)
            assert data, f"only {self._buffer!r}: {self.process.communicate()[1]!r}"
            self._buffer += data

    def guard(self) -> int:
        """The PID of the supervisor's guard, or of the remote shell, of the only host."""
        (pid,) = children_of(self.process.pid)
        return pid

    def supervisor(self) -> int:
        """The PID of the supervisor of the only host."""
        (pid,) = children_of(self.guard())
        return pid

    def finish(self) -> tuple[int, bytes, bytes]:
        """Wait for the launcher's end; return its exit status, and the rest of its output."""
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, self._buffer + out, err

    def processes(self) -> list[int]:
        """The job's processes, found by a variable that all of them inherit."""
        wanted = f"{_MARKER}={self._marker}".encode()
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    environ = Path(f"/proc/{entry}/environ").read_bytes()
                except OSError:  # it ended meanwhile
                    continue
                if wanted in environ.split(b"\0"):
                    found.append(int(entry))
        return found

    def assert_nothing_left(self) -> None:
        """Wait until no process of the job is left."""
        deadline = time.monotonic() + PATIENCE_S
        while remaining := self.processes():
            assert time.monotonic() < deadline, f"left behind: {describe(remaining)}"
            time.sleep(0.02)  # processes that are not children can only be polled


def children_of(pid: int) -> list[int]:
    """The children of a process with one thread."""
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def describe(pids: Sequence[int]) -> dict[int, bytes]:
    commands = {}
    for pid in pids:
        try:
            commands[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        except OSError:
            continue
    return commands


def sorted_lines(output: bytes) -> list[bytes]:
    return sorted(output.splitlines())
