"""What happened in a watched job, newest last, and what of it ranks say on standard error.

The runtime's warnings, verdicts of autotuning and errors are lines of a known form there; all else
that a rank prints is left alone.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from horoscale._rank_ranges import rank_ranges
from horoscale.runner.text import printable

KEPT = 400
_LOOKED_BACK = 16  # for the same event of another rank
_MOST_RANKS = 64  # named by one event
_MOST_CHARACTERS = 500
_MOST_LINE_BYTES = 4096

# "[rank 2] warning: text", with a time before it where the user wants one.
_LOG = re.compile(r"^(?:\S+ \S+ )?\[rank \d+\] (warning|error|fatal|autotune): (.+)$")
_RAISED = re.compile(
    r"^(?:[\w.]+\.)?(MismatchError|DuplicateNameError|RankFailedError|HorovodInternalError): (.+)$"
)
_STALLS = ("has waited for", "has not advanced for", "is not done", "wait for each other")


class Said(NamedTuple):
    """A line of a rank's that tells something of the job."""

    kind: str
    severity: str
    text: str


class Events:
    """The last events. Those that several ranks tell alike, one after the other, are one."""

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
        """Add one: `at` is the time of day; `severity` is "info", "warning" or "error"."""
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
        event.setdefault("id", self._number)  # stays, where the same comes again
        event.update(number=self._number, time=round(at, 3))
        self._kept.append(event)

    def since(self, number: int) -> list[dict[str, Any]]:
        """Return the events after that number, as values of JSON."""
        return [
            {
                **{name: value for name, value in one.items() if name != "of"},
                "ranks": rank_ranges(sorted(one["of"])),
            }
            for one in self._kept
            if one["number"] > number
        ]


class Listener:
    """Finds in what a rank writes to standard error the lines that tell something of the job."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Said]:
        """Take a piece; return what is complete in it."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest if len(rest) <= _MOST_LINE_BYTES else b""
        for line in lines:
            # Most are of neither form: that is found out without decoding them.
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
