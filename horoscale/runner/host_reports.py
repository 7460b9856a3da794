"""Combines the status reports of one host's ranks, once a second.

The supervisor accepts lines from its ranks at any time and sends the launcher one frame a second
with what has changed. If the launcher does not keep up, nothing is sent, and changes are combined
further. The number of ranks thus bounds the memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

MAX_LINE_BYTES = 32 << 10  # of a rank
MAX_REPORT_BYTES = 256 << 10  # of a frame
_INTERVAL_S = 1.0
_MOST_NAMES = 64  # values of a rank in a report
_MOST_NOTES = 16  # notes of a rank in a report


class HostReports:
    """Combines the reports of ranks. `send` gets the payload of each frame."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._changed: dict[int, dict[str, Any]] = {}
        self._due_at = 0.0

    @property
    def deadline(self) -> float | None:
        """The next time to call check()."""
        return self._due_at if self._changed else None

    def take(self, process: int, line: bytes) -> None:
        """Add a rank's line; ignore an invalid one."""
        values = parsed(line) if len(line) <= MAX_LINE_BYTES else None
        if not isinstance(values, dict):
            return
        known = self._changed.setdefault(process, {})
        if len(known.keys() | values.keys()) > _MOST_NAMES:
            return
        notes = [*_notes(known), *_notes(values)][-_MOST_NOTES:]
        known.update(values)
        if notes:
            known["notes"] = notes

    def check(self, now: float, is_behind: bool) -> None:
        """Send the changes if a second has passed and the launcher keeps up."""
        if self._changed and now >= self._due_at:
            self._due_at = now + _INTERVAL_S
            if not is_behind:
                self.flush()

    def flush(self) -> None:
        """Send the changes."""
        changed, self._changed = self._changed, {}
        part: dict[int, dict[str, Any]] = {}
        size = 0
        for process, values in changed.items():
            more = _size(values)
            if more > MAX_REPORT_BYTES:  # valid ranks never send that much
                continue
            if part and size + more > MAX_REPORT_BYTES:
                self._send(_encoded(part))
                part, size = {}, 0
            part[process] = values
            size += more
        if part:
            self._send(_encoded(part))


def parsed(text: bytes) -> Any:
    """Parse JSON of an untrusted process; return None if it is invalid or too large."""
    if len(text) > 2 * MAX_REPORT_BYTES:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _notes(values: dict[str, Any]) -> list[Any]:
    notes = values.get("notes")
    return notes if isinstance(notes, list) else []


def _size(values: dict[str, Any]) -> int:
    """Return the size in bytes; more than MAX_REPORT_BYTES if nested too deeply."""
    try:
        return len(json.dumps(values, separators=(",", ":")))
    except RecursionError:
        return MAX_REPORT_BYTES + 1


def _encoded(reports: dict[int, dict[str, Any]]) -> bytes:
    return json.dumps(reports, separators=(",", ":")).encode()
