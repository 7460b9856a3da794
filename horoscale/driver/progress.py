"""Evaluates the reports that the ranks of a job send each second: pure functions of time.

A report contains counters of the script (commit, epoch, step, batch), the time that the rank has
computed and waited, and for each process set the last and the pending operations. Reports are not
trusted: invalid fields are ignored.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from horoscale._rank_ranges import named, rank_intervals

SILENT_S = 5.0  # without a report
STALLED_S = 10.0  # without progress while others advance, or with an operation pending
STRAGGLES = 1.5  # ratio to the other ranks' computing time
_WINDOW = 10  # reports over which ranks are compared
_LEAST_WINDOW_S = 3.0
_MOST_SETS = 8  # of a report
_MOST_CHARACTERS = 200
_MOST = 1e15
_COUNTERS = ("commit", "epoch", "step", "batch")


class Progress:
    """The reports of one process."""

    def __init__(self, now: float) -> None:
        """Start at a time, without a report."""
        self.counters: dict[str, int] = {}
        self.computing = self.waiting = 0.0  # seconds
        self.sets: list[dict[str, Any]] = []
        self.reported_at = now
        self.advanced_at = now
        self._advance: tuple[object, ...] = ()
        self._times: deque[tuple[float, float]] = deque(maxlen=_WINDOW)  # (time, computing)

    def take(self, values: dict[str, Any], now: float) -> None:
        """Handle a report."""
        self.counters = {name: values[name] for name in _COUNTERS if type(values.get(name)) is int}
        self.computing = _number(values, "computing_seconds")
        self.waiting = _number(values, "waiting_seconds")
        given = values.get("sets")
        known = given[:_MOST_SETS] if isinstance(given, list) else []
        self.sets = [_set_of(one) for one in known if isinstance(one, dict)]
        self.reported_at = now
        advance = (*self.counters.values(), *(one["operations"] for one in self.sets))
        if advance != self._advance:
            self._advance, self.advanced_at = advance, now
        if self._times and self.computing < self._times[-1][1]:  # restarted in another view
            self._times.clear()
        self._times.append((now, self.computing))

    @property
    def tells_all_pending(self) -> bool:
        """Whether the last report includes all process sets with a pending operation.

        A report has the global set first, then the sets that have waited longest.
        """
        return len(self.sets) < _MOST_SETS or any(not one["pending"] for one in self.sets[1:])

    @property
    def computing_share(self) -> float | None:
        """The fraction of the last seconds in which it did not wait; None if unknown."""
        if len(self._times) < 2:
            return None
        (began, before), (ended, after) = self._times[0], self._times[-1]
        return (after - before) / (ended - began) if ended - began >= _LEAST_WINDOW_S else None

    def describe(self, now: float) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "progress": self.counters,
            "reported_seconds_ago": round(now - self.reported_at, 1),
            "advanced_seconds_ago": round(now - self.advanced_at, 1),
            "computing_seconds": round(self.computing, 1),
            "waiting_seconds": round(self.waiting, 1),
            "computing_share": self.computing_share,
            "sets": self.sets,
        }


def findings(ranks: Mapping[int, Progress], now: float) -> list[dict[str, Any]]:
    """Return stalled and slow ranks, each as {"what", "ranks", "text"}.

    `what` is "silent", "waiting" (a process set), "stalled" or "straggler".
    """
    found = _silent(ranks, now)
    waiting = _waiting(ranks, now)
    found += waiting
    named = {rank for one in found for rank in (*one["ranks"], *one.get("waiting", ()))}
    found += _stalled({rank: one for rank, one in ranks.items() if rank not in named}, ranks, now)
    return found + _stragglers(ranks, {rank for one in found for rank in one["ranks"]})


def known_members(
    listed: str, reporting: Iterable[int], ranks: Mapping[int, Progress]
) -> list[int]:
    """Return the sorted members of a process set for which it is known whether they wait in it.

    A report has only some of its rank's sets. If it includes all pending sets but not this one, the
    member has called nothing in it. `listed` is the list of the set's ranks in the reports; a
    truncated list proves nothing.
    """
    known = set(reporting)
    living = sorted(ranks)
    for first, last in rank_intervals(listed) or ():
        for rank in living[bisect_left(living, first) : bisect_right(living, last)]:
            if ranks[rank].sets and ranks[rank].tells_all_pending:
                known.add(rank)
    return sorted(known)


def _set_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a rank's report of a process set; texts are truncated, invalid values replaced."""
    texts = ("ranks", "last_operation", "executing", "pending_operation")
    return {
        "set": int(_number(values, "set")),
        **{name: str(values.get(name, ""))[:_MOST_CHARACTERS] for name in texts},
        "operations": int(_number(values, "operations")),
        "pending": int(_number(values, "pending")),
        "pending_seconds": _number(values, "pending_seconds"),
    }


def _number(values: Mapping[str, Any], key: str) -> float:
    value = values.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return 0.0
    return float(value) if 0 <= value < _MOST else 0.0


def _silent(ranks: Mapping[int, Progress], now: float) -> list[dict[str, Any]]:
    return [
        _finding(
            "silent",
            [rank],
            f"rank {rank} has said nothing for {now - one.reported_at:.0f} s: it is stopped, or "
            "something keeps Python's other threads from running",
        )
        for rank, one in sorted(ranks.items())
        if now - one.reported_at >= SILENT_S
    ]


def _waiting(ranks: Mapping[int, Progress], now: float) -> list[dict[str, Any]]:
    members: dict[tuple[int, str], dict[int, dict[str, Any]]] = {}
    for rank, progress in sorted(ranks.items()):
        for one in progress.sets:
            members.setdefault((one["set"], one["ranks"]), {})[rank] = one
    found = []
    for (name, listed), of_ranks in sorted(members.items()):
        since = {
            rank: one["pending_seconds"] + now - ranks[rank].reported_at
            for rank, one in of_ranks.items()
            if one["pending"]
        }
        if not since or max(since.values()) < STALLED_S:
            continue
        longest = max(since, key=lambda rank: since[rank])
        operation = of_ranks[longest]["pending_operation"]
        missing = [rank for rank in known_members(listed, of_ranks, ranks) if rank not in since]
        text = (
            f'process set {name} of ranks {listed}: "{operation}" has been pending for '
            f"{since[longest]:.0f} s on {_ranks(list(since))}"
        )
        text += f", and not been called by {_ranks(missing)}" if missing else ""
        found.append({**_finding("waiting", missing, text), "waiting": sorted(since), "set": name})
    return found


def _stalled(
    candidates: Mapping[int, Progress], ranks: Mapping[int, Progress], now: float
) -> list[dict[str, Any]]:
    newest = max((one.advanced_at for one in ranks.values()), default=now)
    return [
        _finding(
            "stalled",
            [rank],
            f"rank {rank} has not advanced for {now - one.advanced_at:.0f} s, while others have",
        )
        for rank, one in sorted(candidates.items())
        if newest - one.advanced_at >= STALLED_S
    ]


def _stragglers(ranks: Mapping[int, Progress], named: set[int]) -> list[dict[str, Any]]:
    shares = {
        rank: share for rank, one in ranks.items() if (share := one.computing_share) is not None
    }
    ordered = sorted(shares.values())
    found = []
    for rank, share in sorted(shares.items()):
        usual = _median_without(ordered, share) if len(ordered) > 1 else share
        if rank in named or share < 0.1 or share <= STRAGGLES * usual:
            continue
        how = f"{share / usual:.1f} times as long as the others" if usual > 0.01 else "alone"
        text = f"rank {rank} computes {how} ({share:.0%} of its time): they wait for it"
        found.append(_finding("straggler", [rank], text))
    return found


def _median_without(ordered: Sequence[float], one: float) -> float:
    """Return the median of all but one of at least two sorted values."""
    left_out = bisect_left(ordered, one)
    middle, odd = divmod(len(ordered) - 1, 2)

    def other(index: int) -> float:
        return ordered[index if index < left_out else index + 1]

    return other(middle) if odd else (other(middle - 1) + other(middle)) / 2


def _finding(what: str, ranks: Sequence[int], text: str) -> dict[str, Any]:
    return {"what": what, "ranks": list(ranks), "text": text}


def _ranks(ranks: Sequence[int]) -> str:
    return named(sorted(ranks), most=20)
