"""Newcomers get the commit that all others have, each from one of them; nothing is hashed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from horoscale.common.views import View
from horoscale.elastic.exchange import exchange
from horoscale.elastic.snapshot import Snapshot

_MOST = 2  # newcomers that a rank gives to; beyond that a broadcast is quicker


def givers(hosts: Sequence[str], previous: Sequence[int | None]) -> dict[int, int] | None:
    """Return, for each newcomer, the rank that gives it the commit.

    It is on the newcomer's host if one there has the commit, and gives to as few others as can be.
    None where some rank would have to give to more than two. `hosts` and `previous` are those of
    the ranks: newcomers had no rank before.
    """
    have = [rank for rank, before in enumerate(previous) if before is not None]
    given: Counter[int] = Counter()
    chosen: dict[int, int] = {}
    for rank, before in enumerate(previous):
        if before is None:
            near = [one for one in have if hosts[one] == hosts[rank]]
            free = [one for one in near if given[one] < _MOST] or have
            giver = min(free, key=lambda one: (given[one], one), default=None)
            if giver is None or given[giver] == _MOST:
                return None
            given[giver] += 1
            chosen[rank] = giver
    return chosen


def give(view: View, giver_of: dict[int, int], commit: Snapshot) -> None:
    """Give a view's commit to the newcomers whose giver this rank is.

    Raises HorovodInternalError if one of them failed.
    """
    exchange([(rank, commit) for rank, giver in giver_of.items() if giver == view.rank], [])


def take(view: View, giver_of: dict[int, int], memory: Snapshot) -> Snapshot:
    """Return a view's commit on a newcomer, in memory of another snapshot where it fits.

    Raises HorovodInternalError if the giver failed: the memory has undefined content then.
    """
    [arrived] = exchange([], [giver_of[view.rank]], memory.blocks)
    return arrived
