"""A pace for work in the background, which shares cores, caches and memory with training."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

SHARE = 0.2  # of the time
_LEAST_S = 0.002  # of work, before a rest


class Pace:
    """Has a thread rest between pieces of its work, so that it works for a fifth of the time."""

    def __init__(
        self,
        hurry: threading.Event,
        total: int,
        budget_s: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin.

        Args:
            hurry: when it is set there are no rests any more.
            total: how much there is to do, in any unit.
            budget_s: there are none, either, while it would be done later than this; None: it may
                take as long as it likes.
            clock: tells the seconds.
        """
        self._hurry = hurry
        self._total = total
        self._budget_s = budget_s
        self._clock = clock
        self._began = self._resumed = clock()
        self._done = 0

    def did(self, amount: int) -> None:
        """Take note of a piece that is done, and rest if it is time."""
        self._done += amount
        now = self._clock()
        worked = now - self._resumed
        if worked < _LEAST_S:
            return
        if not self._is_late(now):
            self._hurry.wait(worked * (1 / SHARE - 1))
        self._resumed = self._clock()

    def _is_late(self, now: float) -> bool:
        if self._budget_s is None:
            return False
        return (now - self._began) * self._total > self._done * self._budget_s
