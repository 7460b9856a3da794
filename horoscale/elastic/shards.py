"""Copies of each rank's shards. Each commit sends them to the rank's buddy."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from horoscale.common.job import current_runtime
from horoscale.common.payloads import allgather_bytes
from horoscale.common.views import View
from horoscale.elastic.buddies import ShardsLostError, Transfer, buddies_of, transfers
from horoscale.elastic.exchange import exchange
from horoscale.elastic.shard_files import ShardGroup
from horoscale.elastic.snapshot import Snapshot

_NAME = "elastic.shards"


class Generation(NamedTuple):
    """A commit, and the view whose ranks have copies of it. Two views may share a commit."""

    number: int
    view: int


@dataclass
class _Copies:
    """This rank's part of a generation: its own shards and others', by rank in the view."""

    rank: int
    buddies: list[int]
    shards: dict[int, Snapshot]


class ShardKeeper:
    """This rank's shards and those that it keeps as a buddy, in the recoverable generations."""

    def __init__(self) -> None:
        """Start without shards."""
        self._kept: dict[Generation, _Copies] = {}

    def commit(self, view: View, number: int, shards: Mapping[str, Any]) -> None:
        """Save the current shards as those of a commit, and exchange copies. Collective.

        Raises HorovodInternalError if a rank failed. Earlier generations are then kept.
        """
        own = Snapshot()
        own.take(dict(shards))
        buddies = buddies_of([member.rsplit(":", 2)[0] for member in view.members])
        wards = [rank for rank, one in enumerate(buddies) if one == view.rank != rank]
        buddy = buddies[view.rank]
        outgoing = [(buddy, own)] if buddy != view.rank else []
        copies = dict(zip(wards, exchange(outgoing, wards), strict=True))
        kept = _Copies(view.rank, buddies, {view.rank: own, **copies})
        self._kept[Generation(number, view.number)] = kept

    def keep(self, rank: int, ranks: int, number: int, shards: Mapping[str, Any]) -> None:
        """Save the current shards as those of a commit, without copies, if ranks do not change."""
        own = Snapshot()
        own.take(dict(shards))
        self._kept[Generation(number, 0)] = _Copies(rank, [*range(ranks)], {rank: own})

    def own(self, job: str) -> list[tuple[ShardGroup, int, Snapshot]]:
        """Return the group, the rank and this rank's own shards of each generation.

        Thread-safe.
        """
        return [
            (
                ShardGroup(key.number, job, key.view, len(one.buddies)),
                one.rank,
                one.shards[one.rank],
            )
            for key, one in sorted(self._kept.copy().items())
        ]

    def has(self, number: int) -> bool:
        """Return whether this rank has its part of a commit."""
        return any(key.number == number for key in self._kept)

    def confirm(self, number: int) -> None:
        """Drop generations older than the predecessor of a commit that all ranks have."""
        self._kept = {key: one for key, one in self._kept.items() if key.number >= number - 1}

    def forget_before(self, view: int) -> None:
        """Drop the copies of earlier views, which were never complete, because the job begins."""
        self._kept = {key: one for key, one in self._kept.items() if key.view >= view}

    def recover(self, number: int) -> list[tuple[int, Any]] | None:
        """Return the shards of a commit that this rank takes over, with their former ranks.

        Returns None if no rank has any, because the job begins. Collective. Raises ShardsLostError
        on all ranks, HorovodInternalError if a rank failed.
        """
        # A commit that not all ranks had is repeated.
        self._kept = {key: one for key, one in self._kept.items() if key.number <= number}
        runtime = current_runtime()
        rank, size = runtime.topology.rank, runtime.topology.size
        known = {key: (one.rank, one.buddies) for key, one in self._kept.items()}
        told = allgather_bytes(runtime, pickle.dumps(known), size, f"{_NAME}.known")
        of_ranks: list[dict[Generation, tuple[int, list[int]]]] = [pickle.loads(t) for t in told]
        generation, plan = _choose(of_ranks, number)
        if generation is None:
            return None
        mine = self._kept[generation].shards if generation in self._kept else {}
        sent = [one for one in plan if one.holder != one.target]
        arrived = exchange(
            [(one.target, mine[one.former]) for one in sent if one.holder == rank],
            [one.holder for one in sent if one.target == rank],
        )
        news = dict(zip([one.former for one in sent if one.target == rank], arrived, strict=True))
        own = self._kept[generation].rank if generation in self._kept else None
        formers = sorted(
            (one.former for one in plan if one.target == rank), key=lambda one: one != own
        )
        return [(former, (news.get(former) or mine[former]).value()) for former in formers]


def _choose(
    known: Sequence[Mapping[Generation, tuple[int, list[int]]]], number: int
) -> tuple[Generation | None, list[Transfer]]:
    """Return the newest generation of a commit that has all shards."""
    found = sorted({key for one in known for key in one if key.number == number}, reverse=True)
    failure = None
    for key in found:
        former = [one[key][0] if key in one else None for one in known]
        buddies = next(one[key][1] for one in known if key in one)
        try:
            return key, transfers(former, buddies)
        except ShardsLostError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    if any(known):
        raise ShardsLostError(f"no rank has shards of commit {number}")
    return None, []
