"""Bans hosts for a while after processes have failed there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BanPolicy:
    """When a host is banned, and for how long.

    By default a host is banned if one of its slots has failed three times within five minutes. The
    ban lasts 10 s, and each later one twice as long. Healthy processes on the host continue.
    """

    failures: int = 3  # of one slot
    within_s: float = 300.0
    cooldown_s: tuple[float, float] | None = (10.0, 300.0)  # None: forever
    evicts: bool = False  # whether the host's other processes must leave

    @classmethod
    def horovod(cls, cooldown_s: tuple[float, float] | None) -> BanPolicy:
        """Return Horovod's policy: the first failure bans the host and ends its processes."""
        return cls(failures=1, cooldown_s=cooldown_s, evicts=True)


class Bans:
    """Records failures and bans. Times are arguments, in seconds."""

    def __init__(self, policy: BanPolicy) -> None:
        self.policy = policy
        self._failures: dict[tuple[str, int], list[float]] = {}
        self._until: dict[str, float] = {}
        self._bans: dict[str, int] = {}  # number of bans by host

    def failed(self, host: str, slot: int, now: float) -> bool:
        """Record the failure of a process; return whether it bans the host.

        Failures on a banned host do not count, because they have the same cause.
        """
        if self.banned(host, now):
            return False
        recent = [
            one for one in self._failures.get((host, slot), []) if now - one < self.policy.within_s
        ]
        recent.append(now)
        self._failures[host, slot] = recent
        if len(recent) < self.policy.failures:
            return False
        self.ban(host, now)
        return True

    def ban(self, host: str, now: float) -> None:
        """Ban a host, and reset its failures."""
        for place in [place for place in self._failures if place[0] == host]:
            del self._failures[place]
        count = self._bans.get(host, 0)
        self._bans[host] = count + 1
        if self.policy.cooldown_s is None:
            self._until[host] = float("inf")
        else:
            low, high = self.policy.cooldown_s
            self._until[host] = now + min(high, low * 2.0 ** min(count, 60))

    def banned(self, host: str, now: float) -> bool:
        """Return whether a host is banned now."""
        return now < self._until.get(host, float("-inf"))

    def deadline(self, now: float) -> float | None:
        """Return the time at which the next ban ends."""
        known = [until for until in self._until.values() if now < until < float("inf")]
        return min(known, default=None)
