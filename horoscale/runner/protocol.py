"""The frames between the launcher and the hosts' supervisors: a JSON header and raw bytes.

    frame := "HSR1" | header length u32 | payload length u32 | header | payload     (big endian)

The header is a JSON object whose `kind` is the type of the frame. The same frames go through a pipe
to this host's supervisor and through a remote shell to another host's, where a login script may
print text first. The magic bytes of each frame distinguish it from such text.

Beyond 32 hosts, supervisors start other supervisors and relay for them (see fleet). An order with
`to` is for the host with that index; one without is for all hosts. Reports of a supervisor below
another one carry `host`, the index of its host.

    launcher → supervisor
        adopt    hosts [{index, name, command}], timeout: start supervisors there and relay
        probe    addresses, port, token: which of them lead to the launcher?
        task     payload: a piece of the function of horoscale.run(), before `job`
        reserve  to, address (the launcher's): a port for torch.distributed, before `job`
        job      command, directory, environment, grace, elastic, watched: shared by all ranks
        start    to, ranks [{rank, environment}], slots: the host's, in elastic jobs
        tell     to, rank, payload: a line of the driver for a rank of an elastic job
        end      to, rank, grace: like stop, for one rank of an elastic job
        ping     to: request for `pong`
        state    asks the ranks what they wait for
        stop     signal, grace: sends the signal, and SIGKILL after `grace` seconds
    supervisor → launcher
        hello    version, machine, pid
        reached  address: one of `probe` that leads to the launcher
        reserved address, port: where other hosts will reach the first rank's torch.distributed
        output   rank, stream (stdout, stderr, result), payload
        exit     rank, status (as subprocess: -N for signal N)
        said     rank, payload: a line of a rank of an elastic job for the driver
        report   payload: the status of ranks of a watched job, once a second (see host_reports)
        drain    the machine is about to be taken away
        pong     the answer to `ping`
        refused  rank, error: the command could not be started
        stuck    pids that did not end after SIGKILL
        lost     error: there is no supervisor any longer, or never was; `greeted`: there was one
        note     text: standard error of the remote shell or the supervisor

Data from supervisors is not trusted: see checked_report().
"""

from __future__ import annotations

import json
import signal
import struct
from collections.abc import Callable, Iterator
from typing import Any

from horoscale.runner.text import printable

VERSION = 6
MAX_HEADER_BYTES = 16 << 20  # environments are the largest content
MAX_REPORT_BYTES = 1 << 16  # for headers from supervisors
MAX_PAYLOAD_BYTES = 1 << 20
MAX_PIDS = 1000

_MAGIC = b"HSR1"
_MAX_PREFACE_BYTES = 1 << 20
_PREAMBLE = struct.Struct("!4sII")

Header = dict[str, Any]


class ProtocolError(Exception):
    """The peer sent data that is not a frame."""


def encode(header: Header, payload: bytes = b"") -> bytes:
    """Return a frame. Text may contain non-UTF-8 bytes as os.fsdecode() represents them."""
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    if len(text) > MAX_HEADER_BYTES or len(payload) > MAX_PAYLOAD_BYTES:
        raise ProtocolError(
            f"a frame of {len(text)} + {len(payload)} bytes is larger than "
            f"{MAX_HEADER_BYTES} + {MAX_PAYLOAD_BYTES}"
        )
    return _PREAMBLE.pack(_MAGIC, len(text), len(payload)) + text + payload


class Decoder:
    """Converts a stream of bytes, received in arbitrary pieces, to frames.

    With `preface`, text before the first frame, such as a login script's, is skipped.
    """

    def __init__(self, *, preface: bool = False, max_header_bytes: int = MAX_HEADER_BYTES) -> None:
        self._buffer = bytearray()
        self._preface = preface
        self._max_header_bytes = max_header_bytes
        self._skipped = 0

    def feed(self, data: bytes) -> Iterator[tuple[Header, bytes]]:
        """Yield the frames that `data` completes."""
        self._buffer += data
        if self._preface:
            self._skip_preface()
        while True:
            frame = self._next()
            if frame is None:
                return
            yield frame

    def at_boundary(self) -> bool:
        """Whether no frame is partly received."""
        return not self._buffer

    def _skip_preface(self) -> None:
        at = self._buffer.find(_MAGIC)
        self._preface = at < 0
        # If there are no magic bytes, the end may be their beginning.
        skipped = at if at >= 0 else max(0, len(self._buffer) - len(_MAGIC) + 1)
        self._skipped += skipped
        if self._skipped > _MAX_PREFACE_BYTES:
            raise ProtocolError(f"no frame within {self._skipped} bytes")
        del self._buffer[:skipped]

    def _next(self) -> tuple[Header, bytes] | None:
        if self._preface:
            return None
        known = min(len(self._buffer), len(_MAGIC))
        if self._buffer[:known] != _MAGIC[:known]:
            raise ProtocolError(f"expected a frame, got {bytes(self._buffer[:80])!r}")
        if len(self._buffer) < _PREAMBLE.size:
            return None
        _, header_bytes, payload_bytes = _PREAMBLE.unpack_from(self._buffer)
        if header_bytes > self._max_header_bytes or payload_bytes > MAX_PAYLOAD_BYTES:
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
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a frame's header is not JSON: {error}") from None
    if not isinstance(header, dict) or not isinstance(header.get("kind"), str):
        raise ProtocolError("a frame's header is not an object with a kind")
    return header


# ---------------------------------------------------------------- validation of reports

Check = Callable[[Any], Any]  # returns the value to use, or raises ValueError


def _number(value: Any) -> int:
    if type(value) is not int or not -(1 << 31) <= value < 1 << 31:  # bool is a subclass of int
        raise ValueError("a number")
    return value


def _port(value: Any) -> int:
    if type(value) is not int or not 0 < value < 1 << 16:
        raise ValueError("a port")
    return value


def _status(value: Any) -> int:
    if type(value) is not int or not -signal.NSIG < value < 256:
        raise ValueError("an exit status")
    return value


def _numbers(value: Any) -> list[int]:
    if not isinstance(value, list) or len(value) > MAX_PIDS:
        raise ValueError(f"at most {MAX_PIDS} numbers")
    return [_number(one) for one in value]


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("text")
    return printable(value)


def _stream(value: Any) -> str:
    if value not in ("stdout", "stderr", "result"):
        raise ValueError("stdout, stderr or result")
    return str(value)


_REPORTS: dict[str, dict[str, Check]] = {
    "hello": {"version": _number, "machine": _text, "pid": _number},
    "reached": {"address": _text},
    "reserved": {"address": _text, "port": _port},
    "output": {"rank": _number, "stream": _stream},
    "exit": {"rank": _number, "status": _status},
    "said": {"rank": _number},
    "report": {},
    "drain": {},
    "pong": {},
    "refused": {"rank": _number, "error": _text},
    "stuck": {"pids": _numbers},
    "lost": {"error": _text, "greeted": _switch},
    "note": {"text": _text},
}


def checked_report(header: Header) -> Header:
    """Return a supervisor's report with only the fields of its kind, and with printable text.

    `host` is kept if present. Raises ProtocolError, which says what is invalid.
    """
    kind = header["kind"]
    if kind not in _REPORTS:
        raise ProtocolError(f"an unknown report {printable(kind)[:40]!r}")
    fields = _REPORTS[kind]
    if "host" in header:
        fields = {**fields, "host": _number}
    report: Header = {"kind": kind}
    for name, check in fields.items():
        try:
            report[name] = check(header[name])
        except KeyError:
            raise ProtocolError(f"a report {kind!r} without {name}") from None
        except ValueError as error:
            got = printable(repr(header[name]))[:40]
            raise ProtocolError(f"{name} of a report {kind!r} is {got}, not {error}") from None
    return report
