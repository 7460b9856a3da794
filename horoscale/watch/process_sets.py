"""What process sets execute and wait for, and for whom, by what their members report."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from horoscale._rank_ranges import rank_ranges
from horoscale.watch.rank import WAITS_S, WatchedRank

MOST_SETS = 128
_MOST_RANGES = 32


def process_sets(ranks: Iterable[WatchedRank], now: float) -> tuple[list[dict[str, Any]], set[int]]:
    """Return the sets as values of JSON, the longest waiting first, and the ranks that are missed.

    A set is what its id and its list of ranks say: those of two views are two.
    """
    members: dict[tuple[int, str], list[tuple[WatchedRank, dict[str, Any]]]] = {}
    for rank in ranks:
        if rank.lives and rank.rank is not None:
            for one in rank.progress.sets:
                members.setdefault((one["set"], one["ranks"]), []).append((rank, one))
    found, late = [], set()
    for (number, listed), of in members.items():
        told, missed = _set(number, listed, of, now)
        found.append(told)
        late |= missed
    found.sort(key=lambda one: (-one["waits_seconds"], one["set"]))
    return found[:MOST_SETS], late


def _set(
    number: int, listed: str, of: list[tuple[WatchedRank, dict[str, Any]]], now: float
) -> tuple[dict[str, Any], set[int]]:
    pending = [(rank, one) for rank, one in of if one["pending"]]
    waits = [
        (rank.until_now(one["pending_seconds"], now), one["pending_operation"], rank)
        for rank, one in pending
    ]
    seconds, operation, _ = max(waits, key=lambda one: one[0], default=(0.0, "", None))
    waiting = {rank.rank for _, name, rank in waits if name == operation}
    executing = [one["executing"] for _, one in of if one["executing"]]
    # A rank that executes it has called it; that it is gone from the list means that it is done.
    absent = {rank.rank for rank, one in of if rank.rank not in waiting and not one["executing"]}
    missed = absent if seconds >= WAITS_S else set()
    told = {
        "set": number,
        "ranks": listed,
        "members": len(of),
        "operations": max(one["operations"] for _, one in of),
        "executing": max(executing, key=executing.count, default=""),
        "last_operation": of[0][1]["last_operation"],
        "waits_for": operation if seconds >= WAITS_S else "",
        "waits_seconds": round(seconds, 1) if seconds >= WAITS_S else 0.0,
        "waiting": _ranges(waiting) if seconds >= WAITS_S else "",
        "missing": _ranges(missed),
    }
    return told, {rank for rank in missed if rank is not None}


def _ranges(ranks: Iterable[int | None]) -> str:
    return rank_ranges(sorted(one for one in ranks if one is not None), _MOST_RANGES)
