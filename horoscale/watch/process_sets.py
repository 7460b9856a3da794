"""What each process set executes, and which ranks it waits for, from its members' reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from horoscale._rank_ranges import rank_ranges
from horoscale.driver.progress import Progress, known_members
from horoscale.watch.rank import WAITS_S, WatchedRank

MOST_SETS = 128
_MOST_RANGES = 32
_Reports = list[tuple[WatchedRank, dict[str, Any]]]  # from the members of one set


def process_sets(ranks: Iterable[WatchedRank], now: float) -> tuple[list[dict[str, Any]], set[int]]:
    """Return the process sets as JSON values, longest wait first, and the ranks they wait for.

    A set is identified by its id and its list of ranks, so sets of two views with the same id but
    different ranks are listed separately. At most `MOST_SETS` sets are returned.
    """
    living = {one.rank: one for one in ranks if one.lives and one.rank is not None}
    reports: dict[tuple[int, str], _Reports] = {}
    for rank in living.values():
        for one in rank.progress.sets:
            reports.setdefault((one["set"], one["ranks"]), []).append((rank, one))
    waits = {key: _longest(of, now) for key, of in reports.items()}
    order = sorted(reports, key=lambda key: (-waits[key][0], key[0]))[:MOST_SETS]
    progress = {rank: one.progress for rank, one in living.items()}
    found, late = [], set()
    for key in order:
        told, missed = _set(*key, reports[key], *waits[key], progress)
        found.append(told)
        late |= missed
    return found, late


def _longest(of: _Reports, now: float) -> tuple[float, str]:
    """Return the wait of the set's longest-pending operation, in seconds, and its name.

    Waits shorter than `WAITS_S` are returned as `(0.0, "")`.
    """
    waits = [
        (rank.until_now(one["pending_seconds"], now), one["pending_operation"])
        for rank, one in of
        if one["pending"]
    ]
    seconds, operation = max(waits, key=lambda one: one[0], default=(0.0, ""))
    return (round(seconds, 1), operation) if seconds >= WAITS_S else (0.0, "")


def _set(
    number: int,
    listed: str,
    of: _Reports,
    seconds: float,
    operation: str,
    progress: Mapping[int, Progress],
) -> tuple[dict[str, Any], set[int]]:
    executing = [one["executing"] for _, one in of if one["executing"]]
    waiting: set[int] = set()
    missed: set[int] = set()
    if seconds > 0:
        reporting = {rank.rank: one for rank, one in of if rank.rank is not None}
        waiting = {
            rank
            for rank, one in reporting.items()
            if one["pending"] and one["pending_operation"] == operation
        }
        # A rank that executes the operation has called it, even if it is no longer pending there.
        called = waiting | {rank for rank, one in reporting.items() if one["executing"]}
        missed = set(known_members(listed, reporting, progress)) - called
    told = {
        "set": number,
        "ranks": listed,
        "members": len(of),
        "operations": max(one["operations"] for _, one in of),
        "executing": max(executing, key=executing.count, default=""),
        "last_operation": of[0][1]["last_operation"],
        "waits_for": operation,
        "waits_seconds": seconds,
        "waiting": rank_ranges(sorted(waiting), _MOST_RANGES),
        "missing": rank_ranges(sorted(missed), _MOST_RANGES),
    }
    return told, missed
