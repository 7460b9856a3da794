"""Outcome: what a rank of horoscale.run() hands in, and the caller reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """What became of the task on one rank: a value, or an exception and its traceback."""

    pickled: bytes | None  # None: an exception that can't be pickled
    traceback: str | None = None

    @property
    def failed(self) -> bool:
        """Whether the function raised."""
        return self.traceback is not None
