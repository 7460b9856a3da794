"""Determines the next view: the order of its members, the commit, and the source of the state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from horoscale.common.views import View, views_of


@dataclass(frozen=True)
class Candidate:
    """A process that will be a rank of the next view."""

    process: int
    host: str
    slot: int
    rank: int | None  # in the preceding view; None for a newcomer
    commits: tuple[int, ...] = ()

    @property
    def identity(self) -> str:
        """An identity that does not depend on the rank."""
        return f"{self.host}:{self.slot}:{self.process}"


def agreed_commit(held: Mapping[int, Sequence[int]]) -> tuple[int, set[int]]:
    """Return the commit to which survivors roll back, and the survivors that hold it.

    `held` has the commits of each survivor. The result is the highest commit shared by all
    survivors that have any; if there is none, the highest of all. If no survivor has a commit, it
    is 0, and all survivors.
    """
    holders = {process: set(commits) for process, commits in held.items() if commits}
    if not holders:
        return 0, set(held)
    common = set.intersection(*holders.values())
    commit = max(common or set.union(*holders.values()))
    return commit, {process for process, commits in holders.items() if commit in commits}


def in_order(candidates: Sequence[Candidate], hosts: Sequence[str]) -> list[Candidate]:
    """Return the candidates in the order of their ranks in the next view.

    Hosts with survivors keep their order; the others follow in the order of `hosts`. On a host,
    processes are ordered by slot. If there is a survivor, the first process is one.
    """
    last = len(candidates)
    age: dict[str, tuple[int, int]] = {}
    for position, host in enumerate(hosts):
        age[host] = (_age(candidates, host, last), position)
    for one in candidates:  # on hosts that are no longer listed
        age.setdefault(one.host, (_age(candidates, one.host, last), len(hosts)))
    ordered = sorted(candidates, key=lambda one: (age[one.host], one.host, one.slot, one.process))
    first = next((at for at, one in enumerate(ordered) if one.rank is not None), 0)
    return [ordered[first], *ordered[:first], *ordered[first + 1 :]]


def _age(candidates: Sequence[Candidate], host: str, none: int) -> int:
    ranks = [one.rank for one in candidates if one.host == host and one.rank is not None]
    return min(ranks, default=none + (1 << 30))


def compose(
    number: int, candidates: Sequence[Candidate], hosts: Sequence[str], *, failed: bool
) -> dict[int, View]:
    """Return the next view for each of its processes.

    `failed`: whether something has failed since the preceding view, so that survivors restore.
    """
    survivors = {one.process: one.commits for one in candidates if one.rank is not None}
    commit, holders = agreed_commit(survivors)
    # A process without the commit has no usable state, so it counts as new.
    known = [
        one if one.process in holders else Candidate(one.process, one.host, one.slot, None)
        for one in candidates
    ]
    ordered = in_order(known, hosts)
    previous = [one.rank for one in ordered]
    latest = {max(commits, default=0) for commits in survivors.values()}
    views = views_of(
        number,
        [one.identity for one in ordered],
        previous,
        source=0,  # a survivor that holds the commit, if there is one
        commit=commit,
        skip_sync=not failed and None not in previous and latest <= {commit},
    )
    return dict(zip((one.process for one in ordered), views, strict=True))
