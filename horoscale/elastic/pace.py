"""Throttling for background work that shares cores, caches and memory with training."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

SHARE = 0.2  # fraction of the time
_LEAST_S = 0.002  # minimum work before a pause


class Pace:
    """Pauses a thread between pieces of its work, so that it works a fifth of the time."""

    def __init__(
        self,
        hurry: threading.Event,
        total: int,
        budget_s: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the clock.

        Args:
            hurry: once set, there are no more pauses.
            total: the amount of work, in any unit.
            budget_s: there are no pauses if the work would otherwise take longer than this. None:
                no limit.
            clock: returns the time in seconds.
        """
        self._hurry = hurry
        self._total = total
        self._budget_s = budget_s
        self._clock = clock
        self._began = self._resumed = clock()
        self._done = 0

    def did(self, amount: int) -> None:
        """Record a completed piece of work, and pause if it is time."""
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
