"""What the library notes for whoever watches the job: a few lines, the newest ones."""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

_KEPT = 64
_MOST_CHARACTERS = 400


class Note(NamedTuple):
    """One line; `kind` says which part of the library speaks, such as "mismatch" or "balance"."""

    number: int
    kind: str
    text: str


_lock = threading.Lock()
_notes: deque[Note] = deque(maxlen=_KEPT)
_number = 0


def note(kind: str, text: str) -> None:
    """Keep a line. Any thread."""
    global _number
    with _lock:
        _number += 1
        _notes.append(Note(_number, kind, text[:_MOST_CHARACTERS]))


def since(number: int) -> list[Note]:
    """Return what was noted after that number, as far as it is kept. Any thread."""
    with _lock:
        return [one for one in _notes if one.number > number]
