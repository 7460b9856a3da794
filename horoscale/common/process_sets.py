"""Process sets: groups of ranks that run collectives concurrently with other groups."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from operator import index
from typing import Any

from horoscale._core import HorovodInternalError, OpKind, Runtime, SetFlags
from horoscale.common import communicators, job

# Adding and removing share a name, so that conflicting calls are detected.
REGISTRATION = "horoscale.process_sets"
# Ids from here on belong to sets that were registered by their members only.
FIRST_ID_BY_MEMBERS = 1 << 30
_NO_SET = -1  # the target of a removal without effect


class ProcessSet:
    """A group of ranks. Register it with hvd.init() or add_process_set() before use."""

    process_set_id: int | None
    ranks: list[int] | None  # sorted, unless it is ordered
    mpi_comm: Any
    ordered: bool
    distinct: bool
    survival: Any = None  # in elastic jobs; see horoscale.common.surviving_sets

    def __init__(
        self, ranks_or_comm: Iterable[int], *, ordered: bool = False, distinct: bool = False
    ) -> None:
        """Describe the set of these global ranks, or of the ranks of an mpi4py communicator.

        The ranks are sorted unless `ordered` is true. An ordered set keeps the given order, which
        rank() and results with one part per rank (allgather, alltoall, reducescatter, gather,
        scatter) follow. Roots and peers are still global ranks. The order does not affect sums.

        Only one set of the same ranks in the same order can be registered, unless `distinct` asks
        for a separate one.

        hvd.init(process_sets=...), which registers the set, determines the ranks of a communicator.
        If Split() created the communicators, each rank passes its own. An ordered set has the
        communicator's order.
        """
        self.process_set_id = None
        self.ordered = ordered
        self.distinct = distinct
        if communicators.is_communicator(ranks_or_comm):
            communicators.check(ranks_or_comm, "ProcessSet(comm)")
            self.ranks = None
            self.mpi_comm = ranks_or_comm
            return
        self.mpi_comm = None
        self.ranks = [index(rank) for rank in ranks_or_comm]
        if not ordered:
            self.ranks.sort()
        if len(set(self.ranks)) != len(self.ranks):
            raise ValueError(f"a process set can't contain a rank twice: {self.ranks}")
        if not self.ranks:
            raise ValueError("a process set needs at least one rank")

    @staticmethod
    def from_group(group: Any = None) -> ProcessSet:
        """Return the process set of a process group of torch.distributed's backend "horoscale".

        None: the default group, whose set is hvd.global_process_set. Raises ValueError if the group
        has another backend.
        """
        distributed = importlib.import_module("horoscale.torch.distributed")
        process_set: ProcessSet = distributed.process_set(group)
        return process_set

    def to_group(self, timeout: timedelta | None = None) -> Any:
        """Return this set as a process group of torch.distributed's backend "horoscale".

        If the set came from from_group(), this returns that group. Otherwise the first call creates
        a group with this `timeout`. All members of the set must make it, as for dist.new_group().
        Later calls return the same group until it is destroyed. Destroying it does not affect the
        set. Operations without a name are matched by the order of the calls on both the set and the
        group.

        Raises ValueError if the set is not registered, this rank is not in it, or
        init_process_group() was not called.
        """
        distributed = importlib.import_module("horoscale.torch.distributed")
        return distributed.process_group(self, timeout)

    def size(self) -> int | None:
        """Return the number of ranks in the set, or None if it is not registered."""
        if self.process_set_id is None or self.ranks is None:
            return None
        return len(self.ranks)

    def rank(self) -> int | None:
        """Return this process' rank in the set, or None if the set is not registered.

        Raises ValueError in a process that does not belong to the set.
        """
        if self.process_set_id is None or self.ranks is None:
            return None
        own = job.current_runtime().topology.rank
        if own not in self.ranks:
            raise ValueError(f"rank {own} does not belong to {self}")
        return self.ranks.index(own)

    def included(self) -> bool | None:
        """Return whether this process is in the set, or None if unknown (before init)."""
        if self.ranks is None or not job.is_initialized():
            return None
        return job.current_runtime().topology.rank in self.ranks

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ProcessSet):
            return NotImplemented
        if self.ranks != other.ranks or self.process_set_id != other.process_set_id:
            return False
        # Until they are registered, distinct sets are equal only if identical.
        is_one = self.process_set_id is not None or not (self.distinct or other.distinct)
        return self is other or is_one

    __hash__ = None  # type: ignore[assignment]  # equality changes with registration

    def __deepcopy__(self, memo: dict[int, Any]) -> ProcessSet:
        """Return the set itself, so that a copied model continues to use the registered set."""
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle the global set by reference: loading returns the global set of that process."""
        if self is global_process_set:
            return "global_process_set"
        return super().__reduce_ex__(protocol)

    def __repr__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, "
            f"mpi_comm={self.mpi_comm}{', ordered=True' if self.ordered else ''}"
            f"{', distinct=True' if self.distinct else ''})"
        )


def _make_global() -> ProcessSet:
    process_set = ProcessSet([0])
    process_set.process_set_id = 0
    process_set.ranks = None  # determined by init
    return process_set


global_process_set = _make_global()

_registered: dict[int, ProcessSet] = {}
_dynamic = False
_before_removal: list[Callable[[], None]] = []
_at_removal: list[Callable[[int], None]] = []


def before_removal(finish: Callable[[], None]) -> None:
    """Call `finish` before remove_process_set(), which raises its exception."""
    _before_removal.append(finish)


def at_removal(forget: Callable[[int], None]) -> None:
    """Call `forget` with the id of each removed set, because ids are reused."""
    _at_removal.append(forget)


def add_process_set(
    process_set: ProcessSet | Sequence[int],
    *,
    ordered: bool = False,
    distinct: bool = False,
    members_only: bool = False,
    tag: str = "",
) -> ProcessSet:
    """Register a process set after hvd.init(process_sets="dynamic"). Every rank must call it.

    `ordered` and `distinct` have the same meaning as in ProcessSet, and apply if ranks are given.

    With `members_only`, only the set's members call it. Other ranks do not take part, and
    process_sets="dynamic" is not needed. Calls are matched by their ranks: if several threads
    register the same ranks concurrently, give each call its own `tag`. Such a set is known only to
    its members, and its operations on CUDA tensors are limited to messages. It can be registered
    even after ranks outside it have died.

    Returns the set, ready for use. Raises ValueError if a set of the same ranks exists or the ranks
    are invalid; MismatchError if the ranks' calls do not match; RankFailedError if a rank that must
    take part is lost; DuplicateNameError if a call with the same ranks and tag is pending;
    NotImplementedError for communicators, which differ from rank to rank.
    """
    runtime = job.current_runtime()
    if not members_only:
        if isinstance(process_set, ProcessSet) and _is_made_by_members(process_set):
            raise ValueError(f"{process_set} is already registered, with members_only=True")
        if not job.is_standby():
            _need_dynamic("add_process_set")
        if tag:
            raise ValueError("hvd.add_process_set(tag=...) is for sets with members_only=True")
    comm = process_set.mpi_comm if isinstance(process_set, ProcessSet) else process_set
    if communicators.is_communicator(comm):
        raise NotImplementedError(
            "hvd.add_process_set() takes ranks, the same on all ranks; sets from communicators are "
            "registered by hvd.init(process_sets=[...])"
        )
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set, ordered=ordered, distinct=distinct)
    elif ordered or distinct:
        raise ValueError(
            "hvd.add_process_set() takes ordered= and distinct= only with a list of ranks: "
            "pass them to ProcessSet()"
        )
    if job.is_standby() and not members_only:  # the first view registers it
        standby: Any = runtime
        standby.process_sets.append(process_set)
        return process_set
    problem = problem_if_registered(process_set) if members_only else None
    process_set.ranks = process_set.ranks or ranks_by_rule(process_set, runtime)
    problem = problem or problem_with_range(process_set.ranks, runtime)
    if problem:
        raise ValueError(problem)
    # All ranks must detect together that such a set exists. If a rank raised alone, the others
    # would wait for it if they add or remove a different set.
    flags = SetFlags.BY_MEMBERS if members_only else SetFlags(0)
    register(runtime, process_set.ranks, flags | _flags_of(process_set), process_set, tag)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a registered set from the job. Every rank must call it.

    A set added with members_only=True is removed by its members only. If the set has lost a member,
    each of the others removes it independently.

    Returns False without effect for the global set and for a set that is not registered. Raises
    MismatchError if the ranks' calls do not match, or if the ranks disagree whether the set is
    registered.
    """
    runtime = job.current_runtime()
    set_id = process_set.process_set_id
    if not _is_made_by_members(process_set):
        _need_dynamic("remove_process_set")
    if set_id is None or set_id == 0:
        set_id = _NO_SET
    for finish in _before_removal:
        finish()
    runtime.enqueue(
        OpKind.REMOVE_PROCESS_SET,
        name=REGISTRATION,
        target=set_id,
        will_wait=True,
    ).wait()
    if set_id == _NO_SET:
        return False
    _forget_set(process_set, set_id)
    return True


def give_up_process_set(process_set: ProcessSet, *, abandon: bool = False) -> None:
    """Release a members_only set without waiting for the other members.

    This rank can no longer use the set. The set is removed when all members have released it and
    pending operations have completed. With `abandon`, pending operations fail on all members
    instead.
    """
    set_id = process_set.process_set_id
    assert set_id is not None
    assert _is_made_by_members(process_set)
    _forget_set(process_set, set_id)
    with contextlib.suppress(HorovodInternalError, ValueError):  # it has failed already
        job.current_runtime().enqueue(
            OpKind.REMOVE_PROCESS_SET,
            name=REGISTRATION,
            target=set_id,
            set_flags=SetFlags.ABANDONED if abandon else SetFlags(0),
        )


def _forget_set(process_set: ProcessSet, set_id: int) -> None:
    _registered.pop(set_id, None)
    process_set.process_set_id = None
    for forget in _at_removal:
        forget(set_id)


def get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """Return the ids of all registered sets with their global ranks, in the sets' order.

    Sets added with members_only=True are included on their members only.
    """
    return job.current_runtime().process_sets()


def registered(set_id: int) -> ProcessSet:
    """Return the process set with an id. Raises ValueError if this process knows none."""
    if set_id == 0:
        return global_process_set
    try:
        return _registered[set_id]
    except KeyError:
        raise ValueError(f"there is no process set {set_id}: it was removed") from None


def known_sets() -> dict[int, ProcessSet]:
    """Return the registered sets that have an object in this process, by id."""
    return dict(_registered)


def are_dynamic() -> bool:
    """Return whether sets can be added and removed."""
    return _dynamic


def begin(runtime: Runtime, dynamic: bool) -> None:
    """Begin a job in which only the global set is registered."""
    global _dynamic
    global_process_set.ranks = list(range(runtime.topology.size))
    _dynamic = dynamic


def register(
    runtime: Runtime,
    ranks: Sequence[int],
    flags: SetFlags,
    process_set: ProcessSet | None,
    tag: str = "",
) -> int:
    """Register a set of these ranks for the object `process_set`, and return its id. Collective."""
    handle = runtime.enqueue(
        OpKind.ADD_PROCESS_SET, name=tag or None, ranks=ranks, set_flags=flags, will_wait=True
    )
    handle.wait()
    set_id = handle.result()
    if process_set is not None:
        process_set.process_set_id = set_id
        _registered[set_id] = process_set
    return set_id


def register_again(runtime: Runtime, ranks: list[int], process_set: ProcessSet | None) -> int:
    """Register a set of a previous job with its ranks in this one, and return its id. Collective.

    Sets that have lost members may now have equal ranks. They remain separate sets.
    """
    flags = SetFlags.ORDERED
    if ranks in runtime.process_sets().values():
        flags |= SetFlags.DISTINCT
    set_id = register(runtime, ranks, flags, process_set)
    if process_set is not None:
        process_set.ranks = ranks
    return set_id


def ranks_by_rule(process_set: ProcessSet, runtime: Runtime) -> list[int]:
    """Return the ranks that a set's rule accepts (see surviving_sets)."""
    size = runtime.topology.size
    ranks = [rank for rank in range(size) if process_set.survival.rule(rank, size)]
    if not ranks:
        raise ValueError(f"the rule of a process set accepts none of the {size} ranks")
    return ranks


def _is_made_by_members(process_set: ProcessSet) -> bool:
    set_id = process_set.process_set_id
    return set_id is not None and set_id >= FIRST_ID_BY_MEMBERS


def _flags_of(process_set: ProcessSet) -> SetFlags:
    flags = SetFlags.ORDERED if process_set.ordered else SetFlags(0)
    # All ranks detect together that such a set is already registered.
    is_another = process_set.distinct and process_set.process_set_id is None
    return flags | SetFlags.DISTINCT if is_another else flags


def problem_if_registered(process_set: ProcessSet) -> str | None:
    """Return the reason why a set cannot be registered if it is already registered, or None."""
    if process_set.ranks is None or process_set.process_set_id is not None:
        return f"{process_set} is already registered"
    return None


def problem_with_range(ranks: Sequence[int], runtime: Runtime) -> str | None:
    """Return the reason why a set cannot be registered if the job lacks its ranks, or None."""
    size = runtime.topology.size
    if min(ranks) < 0 or max(ranks) >= size:
        return f"process set {ranks}: ranks must be between 0 and {size - 1}"
    return None


def _need_dynamic(function: str) -> None:
    if not _dynamic:
        raise ValueError(
            f'hvd.{function}() needs hvd.init(process_sets="dynamic") or '
            "HOROSCALE_DYNAMIC_PROCESS_SETS=1"
        )


def _forget() -> None:
    """Unregister all sets at the end of a job. The next job can use their objects."""
    global _dynamic
    for process_set in _registered.values():
        process_set.process_set_id = None
    _registered.clear()
    global_process_set.ranks = None
    _dynamic = False


job.at_end(_forget)
