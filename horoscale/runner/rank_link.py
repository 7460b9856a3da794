"""The supervisor's end of a link to a rank: for an elastic job's driver, or for the status page.

It is a socket pair, of which only the rank inherits one end. Lines go both ways and are not
interpreted here.
"""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Callable

MAX_LINE_BYTES = 64 << 10  # of what a rank says
_MAX_QUEUED_BYTES = 8 << 20  # for a rank that does not read


class RankLink:
    """One rank's. `on_line` gets each line that it says."""

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
        """The rank's end, to inherit."""
        return self._ranks.fileno()

    def variable(self) -> str:
        """The rank's end, so that it can tell it from another file of that number."""
        return f"{self.descriptor}:{os.fstat(self.descriptor).st_ino}"

    def started(self) -> None:
        """The rank has inherited its end."""
        self._ranks.close()
        self._watch()

    def send(self, line: bytes) -> None:
        """Queue a line, and send what the rank takes now."""
        if self._closed or len(self._queued) + len(line) > _MAX_QUEUED_BYTES:
            return
        self._queued += line
        self._write()

    def close(self) -> None:
        """End it, after what the rank has said last."""
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
            if len(self._read) > MAX_LINE_BYTES:  # a rank that says what no rank says
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
