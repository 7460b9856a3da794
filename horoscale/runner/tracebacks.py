"""Deduplicates tracebacks on the ranks' standard error: equal ones are printed once.

From the line "Traceback (most recent call last):" on, a rank's standard error is held back for a
moment, in which other ranks fail, too. Everything else passes immediately. Nothing is lost: if a
rank prints the same later, a line says so.
"""

from __future__ import annotations

import itertools
import linecache
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from horoscale._rank_ranges import named
from horoscale.runner.bootstrap import PACKAGE_ROOT

HOLD_S = 0.5
_MAX_HELD_BYTES = 1 << 20  # of one rank; more is not a traceback
_MAX_KNOWN = 64

_HEADER = b"Traceback (most recent call last):"
_BEGIN = re.compile(rb"^" + re.escape(_HEADER) + rb"\r?$", re.MULTILINE)
_CHAINED = (
    b"During handling of the above exception, another exception occurred:",
    b"The above exception was the direct cause of the following exception:",
)
_FRAME = re.compile(rb'  File "(.*)", line \d+')
_OWN = os.path.join(PACKAGE_ROOT, "horoscale", "").encode()
_INSTALLED = re.compile(rb"/(?:site|dist)-packages/horoscale/")
# A subpackage's file below any folder of our name, which may also be a user's folder.
_BELOW = re.compile(rb".*/horoscale/((?:\w+/)+\w+\.py)")


class Stream(Protocol):
    """A rank's standard error."""

    rank: int

    def emit(self, lines: bytes, ranks: Sequence[int]) -> None:
        """Print complete lines on behalf of all of `ranks`."""

    def remember(self, lines: bytes) -> None:
        """Keep lines for the report without printing them."""


@dataclass
class _Held:
    release_at: float
    text: bytearray


class Tracebacks:
    """Filters the ranks' standard error before the console."""

    def __init__(
        self, *, show_all: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`show_all`: whether to disable holding back and filtering."""
        self._show_all = show_all
        self._clock = clock
        self._held: dict[Stream, _Held] = {}
        self._known: dict[bytes, list[int]] = {}  # printed tracebacks, and their ranks

    @property
    def deadline(self) -> float | None:
        """The next time to call check_deadline()."""
        return min((held.release_at for held in self._held.values()), default=None)

    def feed(self, stream: Stream, lines: bytes) -> None:
        """Handle complete lines of a rank."""
        if self._show_all:
            stream.emit(lines, [stream.rank])
            return
        held = self._held.get(stream)
        if held is None:
            begin = _BEGIN.search(lines) if _HEADER in lines else None
            if begin is None:
                stream.emit(lines, [stream.rank])
                return
            if begin.start() > 0:
                stream.emit(lines[: begin.start()], [stream.rank])
            held = self._held[stream] = _Held(self._clock() + HOLD_S, bytearray())
            lines = lines[begin.start() :]
        held.text += lines
        if len(held.text) > _MAX_HELD_BYTES:
            self._release([stream])

    def check_deadline(self, now: float) -> None:
        """Print what has been held back for long enough."""
        due = [stream for stream, held in self._held.items() if now >= held.release_at]
        if due:
            self._release(due)

    def flush(self) -> None:
        """Print everything, at the end."""
        self._release(list(self._held))

    def _release(self, due: Sequence[Stream]) -> None:
        """Print the output of ranks, once for those with equal output."""
        alike: dict[bytes, dict[Stream, bytes]] = {}
        traceback_of = {}
        for stream, held in self._held.items():
            traceback_of[stream], rest = split_traceback(bytes(held.text))
            alike.setdefault(traceback_of[stream], {})[stream] = rest
        for stream in due:
            if stream in self._held:
                self._print_for_all(traceback_of[stream], alike[traceback_of[stream]])

    def _print_for_all(self, traceback: bytes, rests: dict[Stream, bytes]) -> None:
        """Print a traceback of several ranks, and what followed it on each."""
        members = sorted(rests, key=lambda one: one.rank)
        for one in members:
            del self._held[one]
        self._print(members, traceback)
        if len(set(rests.values())) == 1:
            _emit(members, rests[members[0]])
        else:
            for one in members:
                _emit([one], rests[one])

    def _print(self, members: Sequence[Stream], traceback: bytes) -> None:
        shown = without_own_frames(traceback)
        earlier = self._known.get(traceback, [])
        if earlier and not any(one.rank in earlier for one in members):
            members[0].emit(
                b"(the same traceback as that of " + named(earlier).encode() + b")\n",
                [one.rank for one in members],
            )
            for one in members:
                one.remember(shown)
        else:
            _emit(members, shown)
        self._known[traceback] = sorted({*earlier, *(one.rank for one in members)})
        if len(self._known) > _MAX_KNOWN:
            del self._known[next(iter(self._known))]


def _emit(members: Sequence[Stream], lines: bytes) -> None:
    if lines:
        members[0].emit(lines, [one.rank for one in members])
        for one in members[1:]:
            one.remember(lines)


def split_traceback(text: bytes) -> tuple[bytes, bytes]:
    """Split text that begins with a traceback after it and the tracebacks chained to it."""
    lines = text.splitlines(keepends=True)
    end = 0
    while end < len(lines) and lines[end].rstrip(b"\r\n") == _HEADER:
        end += 1
        while end < len(lines) and lines[end].startswith((b" ", b"\t")):
            end += 1
        end += 1  # the exception
        chained = [line.rstrip(b"\r\n") for line in lines[end : end + 4]]
        if len(chained) == 4 and chained[1] in _CHAINED and chained[3] == _HEADER:
            end += 3
    return b"".join(lines[:end]), b"".join(lines[end:])


def without_own_frames(traceback: bytes) -> bytes:
    """Return a traceback without horoscale's frames, unless it has no others."""
    lines = traceback.splitlines(keepends=True)
    groups: list[tuple[bool, list[bytes]]] = []  # whether it is our frame, and its lines
    for line in lines:
        frame = _FRAME.match(line)
        if frame is not None:
            groups.append((_is_own(frame[1]), [line]))
        elif groups and line.startswith((b"    ", b"  [Previous line")):
            groups[-1][1].append(line)
        else:
            groups.append((False, [line]))
    frames = [is_own for is_own, (first, *_) in groups if _FRAME.match(first)]
    if all(frames):
        return traceback
    result = []
    for is_own, run in itertools.groupby(groups, key=lambda group: group[0]):
        pieces = [line for _, piece in run for line in piece]
        if is_own:
            count = sum(_FRAME.match(line) is not None for line in pieces)
            noun = "frame" if count == 1 else "frames"
            hint = f"  ({count} {noun} of horoscale: HOROSCALE_FULL_TRACEBACK=1 shows them)\n"
            result.append(hint.encode())
        else:
            result += pieces
    return b"".join(result)


def _is_own(file: bytes) -> bool:
    """Return whether a frame is horoscale's, which may have another path on a rank."""
    if file.startswith(_OWN) or _INSTALLED.search(file):
        return True
    below = _BELOW.fullmatch(file)
    return below is not None and os.path.isfile(_OWN + below[1])


_PLACE = re.compile(r'^  File "(.+)", line (\d+), in .+$')


def with_source(traceback: str) -> str:
    """Add source that only this process has, such as a notebook's cells, to a rank's traceback."""
    lines = traceback.split("\n")
    told = []
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        told.append(line)
        found = _PLACE.match(line)
        if found and not after.startswith("    "):
            source = linecache.getline(found[1], int(found[2])).strip()
            told += [f"    {source}"] * bool(source)
    return "\n".join(told)
