"""The file through which the launcher passes the ranks' outcomes to horoscale.run().

It has no name and consists of frames (see protocol): `result` with a rank and a piece of its
outcome, and finally `report` with the launcher's report.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import tempfile
from collections.abc import Iterator
from typing import IO, BinaryIO

from horoscale.runner.outcome import Outcome
from horoscale.runner.protocol import Decoder, encode
from horoscale.runner.report import LAUNCHER

MAX_RESULTS_BYTES = 16 << 30  # of all ranks; larger results should be written to files
_READ_BYTES = 1 << 20
_IN_MEMORY_BYTES = 1 << 20  # of one process
_PIECE_BYTES = 1 << 16


class ResultsError(Exception):
    """The ranks' results cannot be kept. The message says why."""


class ResultsTooLargeError(ResultsError):
    """The ranks' results are too large."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the ranks' results exceed {limit / (1 << 30):g} GiB: let the ranks write them to "
            "files, and return the files' names"
        )


@contextlib.contextmanager
def _in_temporary_file() -> Iterator[None]:
    """Raise ResultsError if the disk is full, or can't be written."""
    try:
        yield
    except OSError as error:
        raise ResultsError(
            f"cannot write the ranks' results to a file in {tempfile.gettempdir()}: "
            f"{error.strerror or error}; set TMPDIR to another folder"
        ) from error


class ResultWriter:
    """Writes the file on the launcher's side."""

    def __init__(self, descriptor: int) -> None:
        # Unbuffered: a buffer would retry a failed write in each call.
        self._file = open(descriptor, "wb", buffering=0)  # noqa: SIM115 (lives as this object)
        self._left = MAX_RESULTS_BYTES
        self._failed = False

    def add(self, rank: int, piece: bytes) -> None:
        """Write a piece of a rank's outcome.

        Raises ResultsError if it cannot be stored, and ResultsTooLargeError if it never could be.
        """
        frame = encode({"kind": "result", "rank": rank}, piece)
        if len(frame) > self._left:
            self._left = 0
            raise ResultsTooLargeError(MAX_RESULTS_BYTES)
        self._left -= len(frame)
        self._write(frame)

    def finish(self, report: bytes) -> None:
        """Write the report. Drops outcomes if one could not be written, so that there is room."""
        with self._file:
            try:
                if self._failed:
                    with _in_temporary_file():
                        self._file.truncate(self._file.seek(0))
                self._write(encode({"kind": "report"}, report))
            except ResultsError as error:
                sys.stderr.write(f"{LAUNCHER}: {error}\n")

    def _write(self, frame: bytes) -> None:
        before, self._failed = self._failed, True
        with _in_temporary_file():
            left = memoryview(frame)
            while left:
                left = left[self._file.write(left) :]
        self._failed = before  # the rest of an earlier frame is still there


class HeldResults:
    """Holds outcomes until their ranks are known; large ones on disk."""

    def __init__(self) -> None:
        self._files: dict[int, IO[bytes]] = {}
        self._left = MAX_RESULTS_BYTES

    def add(self, process: int, piece: bytes) -> None:
        """Add a piece of a process's outcome. Raises as ResultWriter.add() does."""
        if len(piece) > self._left:
            self._left = 0
            raise ResultsTooLargeError(MAX_RESULTS_BYTES)
        self._left -= len(piece)
        if process not in self._files:
            spool = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES)  # noqa: SIM115 (until taken)
            self._files[process] = spool
        with _in_temporary_file():
            self._files[process].write(piece)

    def take(self, process: int) -> Iterator[bytes]:
        """Yield and remove the pieces of a process; nothing if there are none."""
        if process not in self._files:
            return
        with self._files.pop(process) as file:
            self._left += file.tell()
            file.seek(0)
            while piece := file.read(_PIECE_BYTES):
                yield piece

    def drop(self, process: int) -> None:
        """Drop the pieces of a process."""
        for _ in self.take(process):
            pass


def read_results(file: BinaryIO) -> tuple[dict[int, Outcome], str]:
    """Return the outcomes in the order in which they began to arrive, and the launcher's report.

    They are pickles, so loading runs code from the ranks. One that can't be loaded, for example
    because its rank died while sending it, is omitted.
    """
    file.seek(0, os.SEEK_SET)
    decoder = Decoder()
    pieces: dict[int, list[bytes]] = {}
    report = ""
    while data := file.read(_READ_BYTES):
        for header, payload in decoder.feed(data):
            if header["kind"] == "report":
                report = payload.decode(errors="replace").strip()
            else:
                pieces.setdefault(header["rank"], []).append(payload)
    outcomes: dict[int, Outcome] = {}
    for rank, parts in pieces.items():
        with contextlib.suppress(Exception):  # a truncated pickle can raise any exception
            outcome = pickle.loads(b"".join(parts))
            if isinstance(outcome, Outcome):
                outcomes[rank] = outcome
    return outcomes, report
