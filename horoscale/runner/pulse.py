"""Detection of unresponsive hosts, whose supervisors no longer answer.

A machine that loses power does not close its connections. Ranks detect that after
NETWORK_TIMEOUT_SECONDS. The launcher must detect it by then, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

DEFAULT_TIMEOUT_S = 30.0
MIN_TIMEOUT_S = 5.0
_INTERVAL_S = 1.0
_MIN_ASKED = 10  # times, however short the timeout is


class Due(NamedTuple):
    """Whom to ask for a sign of life, and who has given none for too long."""

    ask: list[int]
    silent: list[int]


class Pulse:
    """Counts the questions that a host has left unanswered.

    Not the seconds since it was heard: a launcher that was stopped itself, or read nothing because
    nobody read its output, has asked nothing meanwhile.
    """

    def __init__(self, timeout_s: float) -> None:
        """Take hosts for silent by `timeout_s` after their last sign of life."""
        self._interval_s = min(_INTERVAL_S, timeout_s / (_MIN_ASKED + 2))
        # The last sign may have come just before a question, and the last question has its time.
        self._most = int(timeout_s / self._interval_s + 1e-9) - 2
        self._unanswered: dict[int, int] = {}
        self._due_at: float | None = None

    @property
    def deadline(self) -> float | None:
        """When check() has something to do."""
        return self._due_at if self._unanswered else None

    def watch(self, host: int, now: float) -> None:
        """Begin to ask a host."""
        if not self._unanswered:
            self._due_at = now + self._interval_s
        self._unanswered[host] = 0

    def forget(self, hosts: Iterable[int]) -> None:
        """Ask these hosts no more."""
        for host in hosts:
            self._unanswered.pop(host, None)

    def heard(self, host: int) -> None:
        """Take a sign of life."""
        if host in self._unanswered:
            self._unanswered[host] = 0

    def check(self, now: float) -> Due:
        """Return what is due; a host is silent once, and then forgotten."""
        if self._due_at is None or now < self._due_at:
            return Due([], [])
        self._due_at = now + self._interval_s
        silent = [host for host, count in self._unanswered.items() if count >= self._most]
        self.forget(silent)
        for host in self._unanswered:
            self._unanswered[host] += 1
        return Due(list(self._unanswered), silent)
