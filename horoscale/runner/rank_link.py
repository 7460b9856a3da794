"""The supervisor's end of a link to a rank, for an elastic job's driver or for the status page.

It is a socket pair; only the rank inherits the other end. Lines go both ways and are not
interpreted here.
"""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Callable

MAX_LINE_BYTES = 64 << 10  # of a line from a rank
_MAX_QUEUED_BYTES = 8 << 20  # for a rank that does not read


class RankLink:
    """The link to one rank. `on_line` gets each line from it."""

    def __init__(self, selector: selectors.BaseSelector, on_line: Callable[[bytes], None]) -> None:
        self._selector = selector
        self._on_line = on_line
        self._own, self._ranks = socket.socketpair()
        self._own.setblocking(False)
        self._read = bytearray()
        self._queued = bytearray()
        self._watched = 0
        self._closed = False

    @property
    def descriptor(self) -> int:
        """The rank's end, which it inherits."""
        return self._ranks.fileno()

    def variable(self) -> str:
        """Return the value with which the rank can verify that the descriptor is its end."""
        return f"{self.descriptor}:{os.fstat(self.descriptor).st_ino}"

    def started(self) -> None:
        """Close the rank's end here, after the rank has inherited it."""
        self._ranks.close()
        self._watch()

    def send(self, line: bytes) -> None:
        """Queue a line, and send as much as the rank accepts now."""
        if self._closed or len(self._queued) + len(line) > _MAX_QUEUED_BYTES:
            return
        self._queued += line
        self._write()

    def close(self) -> None:
        """Close it, after reading the rank's last lines."""
        if not self._closed:
            self._take()
        self._end()
        self._ranks.close()

    def _on_event(self) -> None:
        self._write()
        self._take()

    def _write(self) -> None:
        try:
            while self._queued and not self._closed:
                del self._queued[: self._own.send(self._queued)]
        except BlockingIOError:
            pass
        except OSError:  # the rank has closed it
            self._queued.clear()
        self._watch()

    def _take(self) -> None:
        while not self._closed:
            try:
                data = self._own.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._end()
                return
            self._read += data
            while (end := self._read.find(b"\n") + 1) > 0:
                line = bytes(self._read[:end])
                del self._read[:end]
                if len(line) <= MAX_LINE_BYTES:
                    self._on_line(line)
            if len(self._read) > MAX_LINE_BYTES:  # valid ranks send no such lines
                self._end()

    def _end(self) -> None:
        if not self._closed:
            self._closed = True
            self._watch()
            self._own.close()

    def _watch(self) -> None:
        wanted = 0 if self._closed else selectors.EVENT_READ
        if self._queued and not self._closed:
            wanted |= selectors.EVENT_WRITE
        if wanted == self._watched:
            return
        if not self._watched:
            self._selector.register(self._own, wanted, self._on_event)
        elif wanted:
            self._selector.modify(self._own, wanted, self._on_event)
        else:
            self._selector.unregister(self._own)
        self._watched = wanted
