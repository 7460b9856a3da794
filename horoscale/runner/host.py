"""The launcher's link to the supervisor of one host."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import IO

from horoscale.runner.bootstrap import python_command
from horoscale.runner.channel import Channel
from horoscale.runner.protocol import MAX_PAYLOAD_BYTES, Header


class HostLink:
    """A supervisor process and the channel to it, from start to end."""

    def __init__(
        self,
        hostname: str,
        selector: selectors.BaseSelector,
        on_event: Callable[[HostLink], None],
        start_timeout_s: float,
    ) -> None:
        self.hostname = hostname
        self.ended = False
        self.status = 0  # of the supervisor, as subprocess
        self.greeted = False
        self._process = subprocess.Popen(
            python_command("horoscale.runner.supervisor", isolated=True),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a terminal's Ctrl-C is the launcher's business
        )
        self._channel = Channel(
            _taken(self._process.stdout),
            _taken(self._process.stdin),
            selector,
            lambda: on_event(self),
        )
        self._start_deadline = time.monotonic() + start_timeout_s

    @property
    def start_deadline(self) -> float | None:
        """When the supervisor should have said hello; None if it has, or has ended."""
        return None if self.greeted or self.ended else self._start_deadline

    def send(self, header: Header, payload: bytes = b"") -> None:
        """Sends an order; nothing happens if the supervisor has ended."""
        self._channel.send(header, payload)

    def send_task(self, task: bytes | None) -> None:
        """Sends the function of horoscale.run(), in pieces."""
        for start in range(0, len(task or b""), MAX_PAYLOAD_BYTES):
            assert task is not None
            self.send({"kind": "task"}, task[start : start + MAX_PAYLOAD_BYTES])

    def receive(self) -> Iterator[tuple[Header, bytes]]:
        """What the supervisor has sent; `ended` is true after its end."""
        self._channel.write()
        frames = self._channel.read()
        if frames is not None:
            yield from frames
            return
        self._end()

    def set_reading(self, wanted: bool) -> None:
        """Stops or resumes reading, so that ranks that print faster than it is read wait."""
        self._channel.set_reading(wanted)

    def abandon(self) -> None:
        """Kills a supervisor that can't be worked with; the kernel kills its ranks."""
        self._process.send_signal(signal.SIGKILL)
        self._end()

    def _end(self) -> None:
        if not self.ended:
            self.ended = True
            self._channel.close_inbound()
            self._channel.close_outbound()
            self.status = self._process.wait()


def _taken(stream: IO[bytes] | None) -> int:
    """The descriptor of a stream, which is closed: its owner is the caller now."""
    assert stream is not None
    descriptor = os.dup(stream.fileno())
    stream.close()
    return descriptor
