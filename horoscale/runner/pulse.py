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
_MIN_ASKED = 10  # minimum number of pings within a timeout


class Due(NamedTuple):
    """The hosts to ping, and those that have not answered for too long."""

    ask: list[int]
    silent: list[int]


class Pulse:
    """Counts the pings that each host has left unanswered.

    It does not measure the time since the last answer: a launcher that was suspended, or blocked
    because nobody read its output, has not sent pings during that time.
    """

    def __init__(self, timeout_s: float) -> None:
        """Consider hosts silent `timeout_s` after their last answer."""
        self._interval_s = min(_INTERVAL_S, timeout_s / (_MIN_ASKED + 2))
        # Two fewer: the last answer may immediately precede a ping, and the last ping needs time.
        self._most = int(timeout_s / self._interval_s + 1e-9) - 2
        self._unanswered: dict[int, int] = {}
        self._due_at: float | None = None

    @property
    def deadline(self) -> float | None:
        """The next time to call check()."""
        return self._due_at if self._unanswered else None

    def watch(self, host: int, now: float) -> None:
        """Start to ping a host."""
        if not self._unanswered:
            self._due_at = now + self._interval_s
        self._unanswered[host] = 0

    def forget(self, hosts: Iterable[int]) -> None:
        """Stop pinging these hosts."""
        for host in hosts:
            self._unanswered.pop(host, None)

    def heard(self, host: int) -> None:
        """Record an answer of a host."""
        if host in self._unanswered:
            self._unanswered[host] = 0

    def check(self, now: float) -> Due:
        """Return the hosts that are due. A silent host is reported once, and then forgotten."""
        if self._due_at is None or now < self._due_at:
            return Due([], [])
        self._due_at = now + self._interval_s
        silent = [host for host, count in self._unanswered.items() if count >= self._most]
        self.forget(silent)
        for host in self._unanswered:
            self._unanswered[host] += 1
        return Due(list(self._unanswered), silent)
