"""Views: an elastic job's membership between two changes, with ranks assigned by the driver.

Views are values. The driver numbers them 1, 2, 3, … and sends each to its members as JSON. Ranks
and set ids of one view have no meaning in another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

MAX_RANKS = 1 << 20
_MAX_NUMBER = (1 << 63) - 1
_MAX_MEMBER = 400  # characters of an identity


@dataclass(frozen=True)
class View:
    """An elastic job's membership as seen by one of its ranks."""

    number: int  # 1, 2, 3 …
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    members: tuple[str, ...]  # the identity of each rank: "host:slot:incarnation"
    # By rank: its rank in the preceding view; None for a rank that does not have the commit.
    previous: tuple[int | None, ...]
    source: int  # the rank whose state the others receive; a survivor if there is one
    commit: int  # number of the commit that all survivors restore (0: none)
    skip_sync: bool  # no rank is new or restores; the same on all ranks

    def __post_init__(self) -> None:
        """Raise ValueError if the fields contradict each other."""
        _check_view(self)

    @property
    def host(self) -> str:
        """The name of this rank's host, as reported by discovery."""
        return self.members[self.rank].rsplit(":", 2)[0]

    def to_json(self) -> str:
        """Return this view as one line of JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> View:
        """Return the view written by to_json(). Raises ValueError if the text is invalid."""
        try:
            return cls.from_fields(json.loads(text))
        except RecursionError:
            raise ValueError("a view must not be nested") from None

    @classmethod
    def from_fields(cls, fields: object) -> View:
        """Return the view with these JSON fields. Raises ValueError if they are invalid."""
        if not isinstance(fields, dict) or fields.keys() != _FIELDS.keys():
            raise ValueError("a view must have exactly the fields " + ", ".join(_FIELDS))
        for name, check in _FIELDS.items():
            if not check(fields[name]):
                raise ValueError(f"a view's {name} can't be {str(fields[name])[:80]!r}")
        lists = {name: tuple(fields[name]) for name in ("members", "previous")}
        return cls(**{**fields, **lists})


@dataclass(frozen=True)
class Provisional:
    """The provisional place of a process that is in no view. Its rank is never 0."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int

    def __post_init__(self) -> None:
        """Raise ValueError for an invalid rank."""
        if not 0 < self.rank < self.size <= MAX_RANKS or not 0 <= self.local_rank < self.local_size:
            raise ValueError(f"invalid provisional rank {self.rank} of {self.size}")

    @classmethod
    def from_fields(cls, fields: object) -> Provisional:
        """Return the object with these JSON fields. Raises ValueError if they are invalid."""
        names = list(cls.__dataclass_fields__)
        if not isinstance(fields, dict) or sorted(fields) != sorted(names):
            raise ValueError("a provisional rank must have exactly the fields " + ", ".join(names))
        if not all(_is_number(value) for value in fields.values()):
            raise ValueError("the fields of a provisional rank must be numbers")
        return cls(**fields)


def views_of(
    number: int,
    members: Sequence[str],
    previous: Sequence[int | None],
    *,
    source: int,
    commit: int,
    skip_sync: bool,
) -> list[View]:
    """Return one view for each member. The ranks of a host are consecutive."""
    hosts = [member.rsplit(":", 2)[0] for member in members]
    order = list(dict.fromkeys(hosts))
    counts = {host: hosts.count(host) for host in order}
    first = {host: hosts.index(host) for host in order}
    made: list[View] = []
    for rank, host in enumerate(hosts):
        local_rank = rank - first[host]
        peers = [one for one in order if counts[one] > local_rank]
        if made and local_rank:  # the same lists, checked once
            base = made[-1]
        else:
            base = View(
                number=number,
                rank=rank,
                size=len(hosts),
                local_rank=local_rank,
                local_size=counts[host],
                cross_rank=peers.index(host),
                cross_size=len(peers),
                members=tuple(members),
                previous=tuple(previous),
                source=source,
                commit=commit,
                skip_sync=skip_sync,
            )
        made.append(
            replace(
                base,
                rank=rank,
                local_rank=local_rank,
                cross_rank=peers.index(host),
                cross_size=len(peers),
            )
        )
    return made


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MAX_NUMBER  # a bool is also an int


def _is_members(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(
        isinstance(one, str) and one.count(":") >= 2 and len(one) <= _MAX_MEMBER for one in value
    )


def _is_previous(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(one is None or _is_number(one) for one in value)


_FIELDS: dict[str, Callable[[object], bool]] = {
    "number": _is_number,
    "rank": _is_number,
    "size": _is_number,
    "local_rank": _is_number,
    "local_size": _is_number,
    "cross_rank": _is_number,
    "cross_size": _is_number,
    "members": _is_members,
    "previous": _is_previous,
    "source": _is_number,
    "commit": _is_number,
    "skip_sync": lambda value: isinstance(value, bool),
}


def _check_view(view: View) -> None:
    size = view.size
    survivors = [one for one in view.previous if one is not None]
    wrong = (
        view.number < 1
        or not 0 < size <= MAX_RANKS
        or len(view.members) != size
        or len(set(view.members)) != size
        or len(view.previous) != size
        or len(set(survivors)) != len(survivors)
        or not 0 <= view.rank < size
        or not 0 <= view.source < size
        or not 0 <= view.local_rank < view.local_size <= size
        or not 0 <= view.cross_rank < view.cross_size <= size
        or (survivors and view.previous[view.source] is None)
        or (view.skip_sync and len(survivors) != size)
    )
    if wrong:
        raise ValueError(f"a view contradicts itself: {str(view)[:300]}")
