"""Process sets that go on when the ranks of an elastic job change.

A set is told again who its members are: by a rule on (rank, size), or by who they were. A member is
a slot of a host: a process that replaces another takes its place. What is known of the sets goes on
from view to view, on all ranks alike; the source tells it to newcomers, whose own objects take
their places in the order in which they were made. So sets that are gone keep their places: also
for ranks that have missed a view whose start failed, or half of a removal.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from horoscale._core import Runtime
from horoscale.common import job, process_sets
from horoscale.common.payloads import broadcast_bytes
from horoscale.common.process_sets import ProcessSet
from horoscale.common.standby import Standby
from horoscale.common.views import View

OnLoss = Literal["shrink", "drop", "wait"]
Rule = Callable[[int, int], bool]


@dataclass(frozen=True)
class Survival:
    """What becomes of a process set when the ranks change."""

    rule: Rule | None = None
    on_loss: OnLoss = "shrink"


@dataclass
class _Kept:
    """One set, as it is known from view to view."""

    members: list[str]  # identities, in the order of the set; none: it is gone for good
    on_loss: str
    process_set: ProcessSet | None  # this process' object for it
    ranks: list[int] | None = None  # in the present view; None: it is not registered there
    set_id: int | None = None  # in the present view
    ordered: bool = False


@dataclass
class _Sets:
    """All sets of the job."""

    kept: list[_Kept] = field(default_factory=list)
    declared: list[ProcessSet] = field(default_factory=list)  # in a standby
    dynamic: bool = False
    entered: bool = True  # the job's sets are all there: it did not fail while it began


_sets = _Sets()


def surviving(ranks_or_rule: Iterable[int] | Rule, *, on_loss: OnLoss = "shrink") -> ProcessSet:
    """Return a process set that says what becomes of it when the ranks change.

    Args:
        ranks_or_rule: its ranks; or a function of (rank, size) that tells which ranks belong to it,
            which is asked again whenever the ranks change, on all of them with the same answer.
        on_loss: for ranks, what to do when a member is lost for which no other process takes its
            slot of the host. "shrink": go on without it; "drop": the set is not registered any
            more; "wait": it is not until the slot is taken again. Sets made by ProcessSet() shrink.

    Register it as any other: by hvd.init(process_sets=[...]) or add_process_set(). Raises
    ValueError where an argument is wrong.
    """
    if on_loss not in ("shrink", "drop", "wait"):
        raise ValueError(f'on_loss={on_loss!r} is none of "shrink", "drop" and "wait"')
    if callable(ranks_or_rule):
        process_set = ProcessSet([0], distinct=True)  # it may accept the ranks of another one
        process_set.ranks = None  # until the number of ranks is known
        process_set.survival = Survival(ranks_or_rule, on_loss)
    else:
        process_set = ProcessSet(ranks_or_rule)
        process_set.survival = Survival(None, on_loss)
    return process_set


def keep(view: View | None) -> None:
    """Take note of the sets of the job that is about to end, which was that of `view`."""
    if not job.is_initialized() or not _sets.entered:
        return  # it did not begin: what is known is as it was
    if job.is_standby():
        standby = cast("Standby", job.current_runtime())
        _sets.declared, _sets.dynamic = list(standby.process_sets), standby.dynamic
        return
    objects = process_sets.known_sets()
    now = job.current_runtime().process_sets()
    for one in _sets.kept:
        if one.set_id is None or one.set_id == 0:
            continue
        if now.get(one.set_id) == one.ranks:
            one.process_set = objects.get(one.set_id)
        else:  # removed, and the id may be another set's
            one.members, one.ranks, one.set_id = [], None, None
    seen = {0, *(one.set_id for one in _sets.kept)}
    for set_id, ranks in sorted(now.items()):
        # What members have made among themselves others do not know: it ends with its view.
        if set_id not in seen and set_id < process_sets.FIRST_ID_BY_MEMBERS:
            process_set = objects.get(set_id)
            survival = None if process_set is None else process_set.survival
            on_loss = "shrink" if survival is None else survival.on_loss
            members = _identities(view, ranks)
            _sets.kept.append(
                _Kept(members, on_loss, process_set, ranks, set_id, ranks != sorted(ranks))
            )
    _sets.dynamic = process_sets.are_dynamic()


def enter_view(view: View | None) -> None:
    """Join the job of a view and register the sets again. Collective over the view's ranks.

    `view` is None where views do not change: it is the same job again. Raises HorovodInternalError
    if the ranks do not meet.
    """
    _sets.entered = False
    runtime = job.start() if view is None else job.start(view=view)
    assert isinstance(runtime, Runtime)
    try:
        _register_again(runtime, view)
    except BaseException:
        job.stop()
        raise
    _sets.entered = True


def _register_again(runtime: Runtime, view: View | None) -> None:
    source = 0 if view is None else view.source
    for one in _sets.kept:
        one.ranks = _ranks_in(one, runtime.topology.size, view)
    table = json.dumps(
        [[one.members, one.on_loss, one.ranks, one.ordered] for one in _sets.kept]
    ).encode()
    own = table if runtime.topology.rank == source else None
    said = json.loads(broadcast_bytes(runtime, own, source, "elastic.process_sets"))
    objects = [one.process_set for one in _sets.kept] or [*_sets.declared]
    objects += [None] * (len(said) - len(objects))
    _sets.kept = [
        _Kept(
            [] if on_loss == "drop" and ranks is None else members,
            on_loss,
            process_set,
            ranks,
            None,
            ordered,
        )
        for (members, on_loss, ranks, ordered), process_set in zip(said, objects, strict=False)
    ]
    process_sets.begin(runtime, _sets.dynamic)
    for one in _sets.kept:
        if one.ranks:
            one.set_id = process_sets.register_again(runtime, one.ranks, one.process_set)
    _sets.declared.clear()


def _ranks_in(one: _Kept, size: int, view: View | None) -> list[int] | None:
    """Return the ranks of a set in a view; None if it is not there."""
    if not one.members:
        return None
    survival = None if one.process_set is None else one.process_set.survival
    if survival is not None and survival.rule is not None:
        return [rank for rank in range(size) if survival.rule(rank, size)] or None
    if view is None:
        return one.ranks
    slots = {_slot(identity): rank for rank, identity in enumerate(view.members)}
    ranks = [slots[_slot(identity)] for identity in one.members if _slot(identity) in slots]
    if len(ranks) < len(one.members) and one.on_loss != "shrink":
        return None
    return (ranks if one.ordered else sorted(ranks)) or None


def _identities(view: View | None, ranks: Sequence[int]) -> list[str]:
    if view is None:
        return [f":{rank}:" for rank in ranks]
    return [view.members[rank] for rank in ranks]


def _slot(identity: str) -> str:
    """Return the host and the slot of a member, without its incarnation."""
    return identity.rpartition(":")[0]
