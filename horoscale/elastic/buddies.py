"""Who keeps a copy of whose shards, and who gets them when ranks are gone: pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class ShardsLostError(RuntimeError):
    """A rank's shards are gone, with the rank and its buddy. The message says which."""


class Transfer(NamedTuple):
    """The shards of one former rank, from the present rank that has them to the one that gets them.

    Where both are the same nothing is sent.
    """

    former: int
    holder: int
    target: int


def buddies_of(hosts: Sequence[str]) -> list[int]:
    """Return, for each rank, the rank that keeps a copy of its shards.

    It is on the next host, at the same place there, so that a host can be lost; on one host it is
    the next rank. `hosts` are the ranks' hosts. A single rank has itself.
    """
    order = list(dict.fromkeys(hosts))
    if len(order) == 1:
        return [(rank + 1) % len(hosts) for rank in range(len(hosts))]
    ranks = {host: [rank for rank, one in enumerate(hosts) if one == host] for host in order}
    found = []
    for rank, host in enumerate(hosts):
        others = ranks[order[(order.index(host) + 1) % len(order)]]
        found.append(others[ranks[host].index(rank) % len(others)])
    return found


def transfers(former: Sequence[int | None], buddies: Sequence[int]) -> list[Transfer]:
    """Return how the shards of all former ranks get to the present ones, in the former's order.

    Ranks that are still there keep theirs. Those of ranks that are gone go to newcomers, one each
    while there are any; what is left stays with the buddies, who then have several.

    Args:
        former: the rank that each present one had, None for a newcomer.
        buddies: of each former rank.

    Raises ShardsLostError where neither a rank nor its buddy is left.
    """
    now = {one: rank for rank, one in enumerate(former) if one is not None}
    lost = [one for one, buddy in enumerate(buddies) if one not in now and buddy not in now]
    if lost:
        raise ShardsLostError(
            f"the shards of former ranks {lost} are lost: they and their buddies, "
            f"{[buddies[one] for one in lost]}, are gone"
        )
    newcomers = iter([rank for rank, one in enumerate(former) if one is None])
    found = []
    for one, buddy in enumerate(buddies):
        if one in now:
            found.append(Transfer(one, now[one], now[one]))
        else:
            holder = now[buddy]
            found.append(Transfer(one, holder, next(newcomers, holder)))
    return found
