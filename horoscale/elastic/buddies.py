"""The rank that keeps a copy of each rank's shards, and the one that takes over a lost rank's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class ShardsLostError(RuntimeError):
    """Shards are lost because a rank and its buddy are both gone. The message names them."""


class Transfer(NamedTuple):
    """The shards of one former rank, the current rank that has them, and the one that gets them.

    If both are the same, nothing is sent.
    """

    former: int
    holder: int
    target: int


def buddies_of(hosts: Sequence[str]) -> list[int]:
    """Return, for each rank, the rank that keeps a copy of its shards.

    The buddy has the same position on the next host, so that the shards survive the loss of a host.
    If there is only one host, the buddy is the next rank. A single rank is its own buddy. `hosts`
    are the hosts by rank.
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
    """Return the transfers of all former ranks' shards to current ranks, by former rank.

    Surviving ranks keep their shards. The shards of lost ranks go to new ranks, one each. If there
    are too few new ranks, the buddies keep the rest and then have several.

    Args:
        former: each current rank's former rank; None for a new rank.
        buddies: each former rank's buddy.

    Raises ShardsLostError if a rank and its buddy are both gone.
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
