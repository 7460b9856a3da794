"""Process sets that survive a change of an elastic job's ranks.

In each view a set's members are determined again: by a rule on (rank, size), or by identity. A
member is a slot on a host, so a replacement process takes the place of its predecessor. All ranks
keep the same list of sets from view to view. The source sends it to new ranks, which match their
own objects by the order of creation. Removed sets therefore keep their positions in the list. This
also covers ranks that missed a view whose start failed, or one half of a removal.
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
    """What happens to a process set when the ranks change."""

    rule: Rule | None = None
    on_loss: OnLoss = "shrink"


@dataclass
class _Kept:
    """A set as it is kept from view to view."""

    members: list[str]  # identities in set order; empty: removed permanently
    on_loss: str
    process_set: ProcessSet | None  # this process' object for the set
    ranks: list[int] | None = None  # in the current view; None: not registered there
    set_id: int | None = None  # in the current view
    ordered: bool = False


@dataclass
class _Sets:
    """All sets of the job."""

    kept: list[_Kept] = field(default_factory=list)
    declared: list[ProcessSet] = field(default_factory=list)  # in a standby
    dynamic: bool = False
    entered: bool = True  # the job has started and all of its sets are registered


_sets = _Sets()


def surviving(ranks_or_rule: Iterable[int] | Rule, *, on_loss: OnLoss = "shrink") -> ProcessSet:
    """Return a process set with a policy for changes of the ranks.

    Args:
        ranks_or_rule: a list of ranks, or a function of (rank, size) that returns whether the rank
            belongs to the set. The function is called again whenever the ranks change, and must
            return the same on all of them.
        on_loss: for a list, what to do if a member is lost and no other process takes its slot on
            the host. "shrink": continue without it. "drop": unregister the set. "wait": unregister
            the set until the slot is taken again. Sets created by ProcessSet() shrink.

    Register the set like any other: with hvd.init(process_sets=[...]) or add_process_set(). Raises
    ValueError if an argument is invalid.
    """
    if on_loss not in ("shrink", "drop", "wait"):
        raise ValueError(f'on_loss={on_loss!r} must be "shrink", "drop" or "wait"')
    if callable(ranks_or_rule):
        process_set = ProcessSet([0], distinct=True)  # its ranks may equal those of another set
        process_set.ranks = None  # until the number of ranks is known
        process_set.survival = Survival(ranks_or_rule, on_loss)
    else:
        process_set = ProcessSet(ranks_or_rule)
        process_set.survival = Survival(None, on_loss)
    return process_set


def keep(view: View | None) -> None:
    """Record the sets of the job of `view`, which is about to end."""
    if not job.is_initialized() or not _sets.entered:
        return  # the job did not start, so the list is unchanged
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
        else:  # removed; another set may have the id now
            one.members, one.ranks, one.set_id = [], None, None
    seen = {0, *(one.set_id for one in _sets.kept)}
    for set_id, ranks in sorted(now.items()):
        # Sets registered by their members only are unknown to other ranks. They end here.
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

    `view` is None in a job whose ranks do not change. Raises HorovodInternalError if the ranks do
    not meet.
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
    """Return the ranks of a set in a view, or None if the set is not registered in it."""
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
    """Return the host and slot of a member, without its incarnation."""
    return identity.rpartition(":")[0]
