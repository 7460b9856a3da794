"""Outcome: the result of one rank of horoscale.run()."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from horoscale.runner.tracebacks import with_source


@dataclass(frozen=True)
class Outcome:
    """The result of the task on one rank: a value, or an exception and its traceback."""

    pickled: bytes | None  # None: an exception that cannot be pickled
    traceback: str | None = None

    @property
    def failed(self) -> bool:
        """Whether the function raised."""
        return self.traceback is not None


class RankError(RuntimeError):
    """A rank of horoscale.run() raised or ended. It is the cause of run()'s exception."""

    def __init__(self, rank: int, traceback: str) -> None:
        super().__init__(rank, traceback)
        self.rank = rank
        self.traceback = traceback

    def __str__(self) -> str:
        return f"rank {self.rank}:\n{self.traceback}"


def raise_first(failures: Sequence[tuple[int, Outcome]], caller: str = "horoscale.run") -> NoReturn:
    """Raise the first exception of the ranks, if possible not one that follows from another.

    `failures` are ranks and their failed outcomes, in the order in which they arrived.
    """
    candidates: list[tuple[bool, Exception, RankError]] = []
    for rank, outcome in failures:
        cause = RankError(rank, with_source(outcome.traceback or ""))
        error: Exception | None = None
        with contextlib.suppress(Exception):  # its class may not exist in this process
            error = pickle.loads(outcome.pickled or b"")
        if not isinstance(error, Exception):
            error = RuntimeError(f"{caller}: {cause}")
        consequence = any(kind.__name__ == "RankFailedError" for kind in type(error).__mro__)
        candidates.append((consequence, error, cause))
    _, error, cause = min(candidates, key=lambda candidate: candidate[0])
    raise error from cause
