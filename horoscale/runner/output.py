"""The ranks' output: prefixed lines on the launcher's own streams, and files per rank."""

from __future__ import annotations

import os
import re
import selectors
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from horoscale._private_file import open_private
from horoscale._rank_ranges import rank_ranges
from horoscale.runner.text import printable
from horoscale.runner.tracebacks import Tracebacks

_MAX_LINE_BYTES = 16 << 20  # a longer line is printed in pieces
_WRITE_BYTES = 4096  # PIPE_BUF: a pipe that polls as writable accepts it without blocking
_FULL_BYTES = 4 << 20
_TAIL_BYTES = 16 << 10  # of the last output, for the report …
_REPORTED_BYTES = 1 << 10  # … and of one line in it

# A line ends with a newline, or with the carriage return of a progress bar.
_LINE_END_INSIDE = re.compile(rb"(?:\n|\r(?!\n))(?!\Z)")


class LineSplitter:
    """Splits a stream of bytes into lines."""

    def __init__(self) -> None:
        self._partial: list[bytes] = []
        self._partial_bytes = 0

    def feed(self, data: bytes) -> bytes:
        """Return the lines that `data` completes, as one piece that ends with a line end."""
        complete = b""
        if self._partial and self._partial[-1].endswith(b"\r") and not data.startswith(b"\n"):
            complete = self.finish()
        # A carriage return at the end must wait, because a newline may follow.
        end = 1 + max(data.rfind(b"\n"), data.rfind(b"\r", 0, len(data) - 1))
        if end > 0:
            complete += self.finish() + data[:end]
        if end < len(data):
            self._partial.append(data[end:])
            self._partial_bytes += len(data) - end
        if self._partial_bytes > _MAX_LINE_BYTES:
            complete += self.finish() + b"\n"
        return complete

    def finish(self) -> bytes:
        """Return the incomplete rest."""
        rest = b"".join(self._partial)
        self._partial.clear()
        self._partial_bytes = 0
        return rest


def prefixed(lines: bytes, prefix: bytes) -> bytes:
    """Prepend the prefix to each of some complete lines."""
    if b"\r" in lines:
        return prefix + _LINE_END_INSIDE.sub(lambda end: end[0] + prefix, lines)
    return prefix + lines[:-1].replace(b"\n", b"\n" + prefix) + lines[-1:]


class Console:
    """The launcher's standard output and error, written in order and without blocking the launcher.

    Both share one queue, so that their lines do not mix on a terminal. Other programs may use the
    same streams, so they remain in blocking mode: each write is small and follows a poll.
    """

    def __init__(self, selector: selectors.BaseSelector, stdout: int = 1, stderr: int = 2) -> None:
        self._selector = selector
        self._descriptors = {"stdout": stdout, "stderr": stderr}
        self._queue: deque[tuple[int, memoryview]] = deque()
        self._watched: int | None = None
        self.queued_bytes = 0
        self.broken = False  # whether the reader has gone

    def put(self, stream: str, text: bytes) -> None:
        """Queue bytes that are written contiguously."""
        if not self.broken and text:
            self._queue.append((self._descriptors[stream], memoryview(text)))
            self.queued_bytes += len(text)
            self._watch()

    @property
    def full(self) -> bool:
        """Whether so much is queued that the ranks should block."""
        return self.queued_bytes > _FULL_BYTES

    def write(self) -> None:
        """Write a piece. Call it when the selector reports the stream as writable."""
        if not self._queue:
            return
        descriptor, text = self._queue[0]
        try:
            written = os.write(descriptor, text[:_WRITE_BYTES])
        except BlockingIOError:  # another program made it non-blocking and filled it
            return
        except OSError:
            self.drop()
            self.broken = True
            return
        self.queued_bytes -= written
        if written == len(text):
            self._queue.popleft()
        else:
            self._queue[0] = (descriptor, text[written:])
        self._watch()

    def drop(self) -> None:
        """Drop the queue."""
        self._queue.clear()
        self.queued_bytes = 0
        self._watch()

    def _watch(self) -> None:
        wanted = self._queue[0][0] if self._queue else None
        if wanted == self._watched:
            return
        if self._watched is not None:
            self._selector.unregister(self._watched)
        if wanted is not None:
            self._selector.register(wanted, selectors.EVENT_WRITE, self.write)
        self._watched = wanted


class RankOutput:
    """One stream of one rank: goes to the console and to its file; keeps lines for the report."""

    def __init__(
        self,
        console: Console,
        rank: int,
        stream: str,
        *,
        timestamp: bool,
        file: BinaryIO | None,
        tracebacks: Tracebacks | None = None,
        last_lines: int = 20,
    ) -> None:
        """`tracebacks` decides when and for which ranks lines are printed; None: immediately."""
        self.rank = rank
        self._console = console
        self._stream = stream
        self._tracebacks = tracebacks
        self._timestamp = timestamp
        self._file = file
        self._splitter = LineSplitter()
        self.last_lines: deque[bytes] = deque(maxlen=last_lines)

    def feed(self, data: bytes) -> None:
        """Handle a rank's output. Raises OSError, once, if its file can't be written."""
        try:
            self._keep(data)
        finally:
            self._print(self._splitter.feed(data))

    def finish(self) -> None:
        """Print an incomplete last line, and close the file."""
        if rest := self._splitter.finish():
            self._print(rest + b"\n")
        self._close_file()

    def _print(self, lines: bytes) -> None:
        if not lines:
            return
        if self._tracebacks is None:
            self.emit(lines, [self.rank])
        else:
            self._tracebacks.feed(self, lines)

    def _keep(self, data: bytes) -> None:
        try:
            while self._file is not None and data:
                data = data[self._file.write(data) :]  # a full disk accepts only a part
        except OSError:
            self._close_file()
            raise

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def emit(self, lines: bytes, ranks: Sequence[int]) -> None:
        """Print complete lines on behalf of all of `ranks`, and remember them."""
        prefix = f"[{rank_ranges(ranks)}]<{self._stream}>:"
        if self._timestamp:
            prefix = time.ctime() + prefix
        self._console.put(self._stream, prefixed(lines, prefix.encode()))
        self.remember(lines)

    def remember(self, lines: bytes) -> None:
        """Keep the last lines for the report."""
        self.last_lines.extend(map(_reported, lines[-_TAIL_BYTES:].splitlines()))


def _reported(line: bytes) -> bytes:
    """Return a rank's line in a form that is safe among the launcher's own."""
    return printable(line[:_REPORTED_BYTES].decode(errors="backslashreplace")).encode()


def open_rank_files(directory: Path, rank: int, size: int) -> dict[str, BinaryIO]:
    """Open DIRECTORY/rank.N/stdout and stderr; N is padded with zeros so that names sort.

    Only their owner may read the files. Links below DIRECTORY are not followed, because other users
    may be able to write there. Raises OSError.
    """
    folder = directory / f"rank.{rank:0{len(str(size - 1))}d}"
    folder.mkdir(parents=True, exist_ok=True)
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return {name: open_private(folder / name, place) for name in ("stdout", "stderr")}
    finally:
        os.close(place)
