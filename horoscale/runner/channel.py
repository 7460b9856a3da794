"""A Channel sends and receives frames over two descriptors without ever blocking."""

from __future__ import annotations

import contextlib
import os
import selectors
from collections import deque
from collections.abc import Iterator
from typing import Any

from horoscale.runner.protocol import MAX_HEADER_BYTES, Decoder, Header, encode

_READ_BYTES = 1 << 16


class Channel:
    """Sends and receives frames with a selector, which says when to call read() and write().

    The selector's data for both descriptors is `key`. Closing is final. send() then does nothing,
    because the code that detects the end of the channel must clean up without further errors.
    """

    def __init__(
        self,
        inbound: int,
        outbound: int,
        selector: selectors.BaseSelector,
        key: Any,
        *,
        preface: bool = False,
        max_header_bytes: int = MAX_HEADER_BYTES,
    ) -> None:
        self._inbound: int | None = inbound
        self._outbound: int | None = outbound
        self._selector = selector
        self._key = key
        self._decoder = Decoder(preface=preface, max_header_bytes=max_header_bytes)
        self._queue: deque[memoryview] = deque()
        self.queued_bytes = 0
        self._reading = False
        self._writing = False
        os.set_blocking(inbound, False)
        os.set_blocking(outbound, False)
        self.set_reading(True)

    @property
    def readable(self) -> bool:
        """Whether it can still receive: neither side has closed it."""
        return self._inbound is not None

    @property
    def writable(self) -> bool:
        """Whether it can still send."""
        return self._outbound is not None

    def send(self, header: Header, payload: bytes = b"") -> None:
        """Queue a frame, and send as much as the peer accepts now."""
        if self._outbound is None:
            return
        frame = encode(header, payload)
        self._queue.append(memoryview(frame))
        self.queued_bytes += len(frame)
        if not self._writing:
            self.write()

    def write(self) -> None:
        """Send as much of the queue as the peer accepts."""
        while self._queue and self._outbound is not None:
            try:
                sent = os.write(self._outbound, self._queue[0])
            except BlockingIOError:
                break
            except OSError:
                self.close_outbound()
                return
            self.queued_bytes -= sent
            if sent == len(self._queue[0]):
                self._queue.popleft()
            else:
                self._queue[0] = self._queue[0][sent:]
        self._watch_outbound(bool(self._queue))

    def read(self) -> Iterator[tuple[Header, bytes]] | None:
        """Return the received frames; None at the end of the channel."""
        if self._inbound is None:
            return None
        try:
            data = os.read(self._inbound, _READ_BYTES)
        except BlockingIOError:
            return iter(())
        except OSError:
            data = b""
        if not data:
            self.close_inbound()
            return None
        return self._decoder.feed(data)

    def set_reading(self, wanted: bool) -> None:
        """Stop or resume reading, to slow the peer down."""
        if self._inbound is None or wanted == self._reading:
            return
        self._reading = wanted
        if wanted:
            self._selector.register(self._inbound, selectors.EVENT_READ, self._key)
        else:
            self._selector.unregister(self._inbound)

    def close_inbound(self) -> None:
        """Stop receiving."""
        if self._inbound is not None:
            self.set_reading(False)
            os.close(self._inbound)
            self._inbound = None

    def close_outbound(self) -> None:
        """Stop sending, and drop the queue."""
        if self._outbound is not None:
            self._watch_outbound(False)
            with contextlib.suppress(OSError):
                os.close(self._outbound)
            self._outbound = None
            self._queue.clear()
            self.queued_bytes = 0

    def _watch_outbound(self, wanted: bool) -> None:
        if self._outbound is None or wanted == self._writing:
            return
        self._writing = wanted
        if wanted:
            self._selector.register(self._outbound, selectors.EVENT_WRITE, self._key)
        else:
            self._selector.unregister(self._outbound)
