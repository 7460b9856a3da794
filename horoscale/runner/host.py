"""The link to the supervisor of one host: local, or behind a remote shell."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

from horoscale.runner.channel import Channel
from horoscale.runner.protocol import MAX_REPORT_BYTES, Header
from horoscale.runner.text import printable

# The ranks' maximum grace if the launcher, a supervisor or the link between them is lost.
LOST_GRACE_S = 2.0

_NOTE_BYTES = 4096  # kept of standard error output before the supervisor's hello
_READ_BYTES = 1 << 16
_ERROR_READS = 16
_LEAVE_S = 2.0  # for a remote shell to end after its supervisor


@dataclass(frozen=True)
class HostSpec:
    """A host of a job: its index, and the command that starts a supervisor there."""

    index: int
    name: str
    command: Sequence[str]

    def header(self) -> dict[str, Any]:
        """Return it as a part of a frame's header."""
        return {"index": self.index, "name": self.name, "command": list(self.command)}


class HostLink:
    """A supervisor process, or the remote shell to one, and the channel to it."""

    def __init__(
        self,
        host: HostSpec,
        selector: selectors.BaseSelector,
        on_event: Callable[[HostLink], None],
        start_timeout_s: float,
    ) -> None:
        """Start it. `on_event` is called when receive() has something to return."""
        self.host = host
        self.ended = False
        self.status = 0  # of the supervisor, as in subprocess
        self.greeted = False
        self.errors = b""  # unread end of standard error
        self._selector = selector
        self._process = subprocess.Popen(
            list(host.command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # only the launcher handles a terminal's Ctrl-C
        )
        self._channel = Channel(
            _taken(self._process.stdout),
            _taken(self._process.stdin),
            selector,
            lambda: on_event(self),
            preface=True,
            max_header_bytes=MAX_REPORT_BYTES,
        )
        self._stderr: int | None = _taken(self._process.stderr)
        os.set_blocking(self._stderr, False)
        self._on_stderr = lambda: on_event(self)
        self._watching_stderr = False
        self._watch_stderr(True)
        self._start_deadline = time.monotonic() + start_timeout_s

    @property
    def pid(self) -> int:
        """The process id of the supervisor or of the remote shell."""
        return self._process.pid

    @property
    def start_deadline(self) -> float | None:
        """The deadline for the supervisor's hello; None after it, or if it has ended."""
        return None if self.greeted or self.ended else self._start_deadline

    def send(self, header: Header, payload: bytes = b"") -> None:
        """Send an order. Does nothing if the supervisor has ended."""
        self._channel.send(header, payload)

    def receive(self) -> Iterator[tuple[Header, bytes]]:
        """Yield received frames. `ended` is true after the supervisor's end."""
        self._read_errors()
        self._channel.write()
        frames = self._channel.read()
        if frames is not None:
            yield from frames
            return
        self._end()

    def take_errors(self) -> list[str]:
        """Return the new complete lines on standard error, made printable."""
        end = len(self.errors) if self.ended else self.errors.rfind(b"\n") + 1
        lines, self.errors = self.errors[:end], self.errors[end:]
        return [printable(line) for line in lines.decode(errors="backslashreplace").splitlines()]

    def set_reading(self, wanted: bool) -> None:
        """Stop or resume reading, so that ranks block if their output is not consumed."""
        self._channel.set_reading(wanted)
        self._watch_stderr(wanted)

    def dismiss(self) -> None:
        """Close the supervisor's input, so that it ends as if its parent had ended."""
        self._channel.close_outbound()

    def abandon(self) -> None:
        """Kill an unusable supervisor, or the remote shell, whose end makes it end."""
        self._process.send_signal(signal.SIGKILL)
        self._end()

    def reaped(self, status: int) -> None:
        """Handle that other code has waited for the process."""
        self._process.returncode = status

    def _read_errors(self) -> None:
        for _ in range(_ERROR_READS):  # limited, so that other hosts get their turn
            if self._stderr is None:
                return
            try:
                data = os.read(self._stderr, _READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                self._close_errors()
            self.errors = (self.errors + data)[-_NOTE_BYTES:]

    def _watch_stderr(self, wanted: bool) -> None:
        if self._stderr is None or wanted == self._watching_stderr:
            return
        self._watching_stderr = wanted
        if wanted:
            self._selector.register(self._stderr, selectors.EVENT_READ, self._on_stderr)
        else:
            self._selector.unregister(self._stderr)

    def _close_errors(self) -> None:
        if self._stderr is not None:
            self._watch_stderr(False)
            os.close(self._stderr)
            self._stderr = None

    def _end(self) -> None:
        if self.ended:
            return
        self._channel.close_inbound()
        self._channel.close_outbound()
        try:
            self.status = self._process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self.status = self._process.wait()
        self.ended = True
        self._read_errors()
        self._close_errors()


def _taken(stream: IO[bytes] | None) -> int:
    """Return the descriptor of a stream after closing the stream object; the caller owns it."""
    assert stream is not None
    descriptor = os.dup(stream.fileno())
    stream.close()
    return descriptor
