"""Send the common commit to new ranks, from one rank each, without hashing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from horoscale.common.views import View
from horoscale.elastic.exchange import exchange
from horoscale.elastic.snapshot import Snapshot

_MOST = 2  # new ranks per sender; with more, a broadcast is faster


def givers(hosts: Sequence[str], previous: Sequence[int | None]) -> dict[int, int] | None:
    """Return, for each new rank, the rank that sends it the commit.

    The sender is on the same host if a rank there has the commit. The load is spread evenly.
    Returns None if a rank would have to send to more than two. `hosts` and `previous` are by rank;
    a new rank has no previous one.
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
    """Send a view's commit to the new ranks that receive it from this one.

    Raises HorovodInternalError if one of them failed.
    """
    exchange([(rank, commit) for rank, giver in giver_of.items() if giver == view.rank], [])


def take(view: View, giver_of: dict[int, int], memory: Snapshot) -> Snapshot:
    """Receive a view's commit on a new rank, reusing the memory of another snapshot where it fits.

    Raises HorovodInternalError if the sender failed. The content of the memory is then undefined.
    """
    [arrived] = exchange([], [giver_of[view.rank]], memory.blocks)
    return arrived
