"""Events of a watched job, newest last, including those parsed from the ranks' standard error.

The runtime's warnings and errors and autotuning decisions are lines of a known format. All other
output is ignored.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from horoscale._rank_ranges import rank_ranges
from horoscale.runner.text import printable

KEPT = 400
_LOOKED_BACK = 16  # recent events searched for a duplicate from another rank
_MOST_RANKS = 64  # listed per event
_MOST_CHARACTERS = 500
_MOST_LINE_BYTES = 4096

# "[rank 2] warning: text", optionally preceded by a timestamp.
_LOG = re.compile(r"^(?:\S+ \S+ )?\[rank \d+\] (warning|error|fatal|autotune): (.+)$")
_RAISED = re.compile(
    r"^(?:[\w.]+\.)?(MismatchError|DuplicateNameError|RankFailedError|HorovodInternalError): (.+)$"
)
_STALLS = ("has waited for", "has not advanced for", "is not done", "wait for each other")


class Said(NamedTuple):
    """An event parsed from a line of a rank's standard error."""

    kind: str
    severity: str
    text: str


class Events:
    """The most recent events (at most `KEPT`).

    Equal events of ranks that are close together are merged into one.
    """

    def __init__(self) -> None:
        self._kept: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._number = 0

    def add(
        self,
        kind: str,
        text: str,
        at: float,
        *,
        severity: str = "info",
        ranks: Iterable[int] = (),
    ) -> None:
        """Add an event, or merge it with a recent one that has the same kind and text.

        Args:
            kind: The kind of event, such as "runtime" or "recovery".
            text: The text, truncated to 500 characters.
            at: The time of day, in seconds since the epoch.
            severity: "info", "warning" or "error".
            ranks: The ranks it concerns. Events without ranks are never merged.
        """
        text, given = printable(text[:_MOST_CHARACTERS])[:_MOST_CHARACTERS], set(ranks)
        for one in list(self._kept)[-_LOOKED_BACK:]:
            if given and (one["kind"], one["text"]) == (kind, text):
                self._kept.remove(one)
                one["of"] = set(sorted(one["of"] | given)[:_MOST_RANKS])
                one["count"] += 1
                self._append(one, at)
                return
        new = {"kind": kind, "severity": severity, "text": text, "count": 1, "of": given}
        self._append(new, at)

    def _append(self, event: dict[str, Any], at: float) -> None:
        self._number += 1
        event.setdefault("id", self._number)  # kept when the event is repeated
        event.update(number=self._number, time=round(at, 3))
        self._kept.append(event)

    def since(self, number: int) -> list[dict[str, Any]]:
        """Return the events with a number greater than `number`, as JSON values."""
        return [
            {
                **{name: value for name, value in one.items() if name != "of"},
                "ranks": rank_ranges(sorted(one["of"])),
            }
            for one in self._kept
            if one["number"] > number
        ]


class Listener:
    """Parser of one rank's standard error that extracts the lines that describe events."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Said]:
        """Parse a chunk of output; yield the events of the lines it completes."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest if len(rest) <= _MOST_LINE_BYTES else b""
        for line in lines:
            # Most lines match neither pattern: skip them without decoding.
            if len(line) <= _MOST_LINE_BYTES and (b"[rank " in line or b"Error: " in line):
                yield from _understood(line.decode(errors="replace").strip())


def _understood(line: str) -> Iterator[Said]:
    if found := _LOG.match(line):
        level, text = found.groups()
        if level == "autotune":
            yield Said("autotune", "info", text)
        elif any(words in text for words in _STALLS):
            yield Said("stall", "warning", text)
        else:
            yield Said("runtime", "warning" if level == "warning" else "error", text)
    elif found := _RAISED.match(line):
        name, text = found.groups()
        kind = "mismatch" if name == "MismatchError" else "failure"
        yield Said(kind, "error", f"{name}: {text}" if kind == "failure" else text)
