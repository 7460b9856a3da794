"""The frames between the launcher and a host's supervisor: a JSON header and raw bytes.

    frame := "HSR1" | header length u32 | payload length u32 | header | payload     (big endian)

The header is a JSON object whose `kind` says what the frame is. The same frames go through a pipe
to this host's supervisor and through ssh to another host's, where a login script may print first:
the mark at the start of every frame tells its text from ours.

    launcher → supervisor
        task     payload: a piece of the function of horoscale.run(), before `start`
        start    command, directory, environment, ranks [{rank, environment}], grace
        stop     signal, grace: sends the signal, and SIGKILL after `grace` seconds
    supervisor → launcher
        hello    version, host, pid
        output   rank, stream (stdout, stderr, result), payload
        exit     rank, status (as subprocess: -N for signal N)
        refused  rank, error: the command could not be started
        stuck    pids that did not end after SIGKILL
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

VERSION = 1
MAX_HEADER_BYTES = 16 << 20  # an environment is the largest thing in a header
MAX_PAYLOAD_BYTES = 1 << 20

_MAGIC = b"HSR1"
_PREAMBLE = struct.Struct("!4sII")

Header = dict[str, Any]


class ProtocolError(Exception):
    """The other side sent what can't be a frame."""


def encode(header: Header, payload: bytes = b"") -> bytes:
    """One frame. Text may hold bytes that aren't UTF-8 as os.fsdecode() gives them."""
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    if len(text) > MAX_HEADER_BYTES or len(payload) > MAX_PAYLOAD_BYTES:
        raise ProtocolError(
            f"a frame of {len(text)} + {len(payload)} bytes is larger than "
            f"{MAX_HEADER_BYTES} + {MAX_PAYLOAD_BYTES}"
        )
    return _PREAMBLE.pack(_MAGIC, len(text), len(payload)) + text + payload


class Decoder:
    """Turns a stream of bytes, cut anywhere, back into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Header, bytes]]:
        """The frames that are complete with `data`."""
        self._buffer += data
        while True:
            frame = self._next()
            if frame is None:
                return
            yield frame

    def at_boundary(self) -> bool:
        """Whether no frame is half received."""
        return not self._buffer

    def _next(self) -> tuple[Header, bytes] | None:
        known = min(len(self._buffer), len(_MAGIC))
        if self._buffer[:known] != _MAGIC[:known]:
            raise ProtocolError(f"expected a frame, got {bytes(self._buffer[:80])!r}")
        if len(self._buffer) < _PREAMBLE.size:
            return None
        _, header_bytes, payload_bytes = _PREAMBLE.unpack_from(self._buffer)
        if header_bytes > MAX_HEADER_BYTES or payload_bytes > MAX_PAYLOAD_BYTES:
            raise ProtocolError(f"a frame announces {header_bytes} + {payload_bytes} bytes")
        start = _PREAMBLE.size
        end = start + header_bytes + payload_bytes
        if len(self._buffer) < end:
            return None
        header = _parse(bytes(self._buffer[start : start + header_bytes]))
        payload = bytes(self._buffer[start + header_bytes : end])
        del self._buffer[:end]
        return header, payload


def _parse(text: bytes) -> Header:
    try:
        header = json.loads(text)
    except ValueError as error:
        raise ProtocolError(f"a frame's header is not JSON: {error}") from None
    if not isinstance(header, dict) or not isinstance(header.get("kind"), str):
        raise ProtocolError("a frame's header is not an object with a kind")
    return header
