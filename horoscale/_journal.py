"""The library's most recent notes for the status page of a watched job."""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

_KEPT = 64
_MOST_CHARACTERS = 400


class Note(NamedTuple):
    """One line. `kind` is the part of the library, such as "mismatch" or "balance"."""

    number: int
    kind: str
    text: str


_lock = threading.Lock()
_notes: deque[Note] = deque(maxlen=_KEPT)
_number = 0


def note(kind: str, text: str) -> None:
    """Add a line. Thread-safe."""
    global _number
    with _lock:
        _number += 1
        _notes.append(Note(_number, kind, text[:_MOST_CHARACTERS]))


def since(number: int) -> list[Note]:
    """Return the notes after that number that are still kept. Thread-safe."""
    with _lock:
        return [one for one in _notes if one.number > number]
