"""Process sets: groups of ranks that run collectives among themselves, side by side with others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from operator import index
from typing import Any

from horoscale._core import OpKind, Runtime
from horoscale.common import communicators, job
from horoscale.common.payloads import allgather_bytes

# Adding and removing share a name, so that ranks that contradict each other find out.
_REGISTRATION = "horoscale.process_sets"
_NO_SET = -1  # the target of a removal that removes nothing


class ProcessSet:
    """A group of ranks. It is registered by hvd.init() or add_process_set() before it is used."""

    process_set_id: int | None
    ranks: list[int] | None
    mpi_comm: Any

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        """Describe the set of these global ranks, in any order, or of a communicator's ranks.

        The ranks of an mpi4py communicator are known from hvd.init(process_sets=...) on, which
        registers the set; where Split() gave it, each rank names the one that it is in.
        """
        self.process_set_id = None
        if communicators.is_communicator(ranks_or_comm):
            communicators.check(ranks_or_comm, "ProcessSet(comm)")
            self.ranks = None
            self.mpi_comm = ranks_or_comm
            return
        self.mpi_comm = None
        self.ranks = sorted(index(rank) for rank in ranks_or_comm)
        if len(set(self.ranks)) != len(self.ranks):
            raise ValueError(f"a process set can't contain a rank twice: {self.ranks}")
        if not self.ranks:
            raise ValueError("a process set needs at least one rank")

    def size(self) -> int | None:
        """Return the number of its ranks, or None while it is not registered."""
        if self.process_set_id is None or self.ranks is None:
            return None
        return len(self.ranks)

    def rank(self) -> int | None:
        """Return this process' position among its ranks, or None while it is not registered.

        Raises ValueError in a process that does not belong to it.
        """
        if self.process_set_id is None or self.ranks is None:
            return None
        own = job.current_runtime().topology.rank
        if own not in self.ranks:
            raise ValueError(f"rank {own} does not belong to {self}")
        return self.ranks.index(own)

    def included(self) -> bool | None:
        """Tell whether this process is in it, or None where that is not known (before init)."""
        if self.ranks is None or not job.is_initialized():
            return None
        return job.current_runtime().topology.rank in self.ranks

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ProcessSet):
            return NotImplemented
        return self.ranks == other.ranks and self.process_set_id == other.process_set_id

    __hash__ = None  # type: ignore[assignment]  # equality changes with registration

    def __deepcopy__(self, memo: dict[int, Any]) -> ProcessSet:
        """Return the set itself: a copied model goes on in the group that the job knows."""
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle the global set by its name: where it is loaded it is the one of that job."""
        if self is global_process_set:
            return "global_process_set"
        return super().__reduce_ex__(protocol)

    def __repr__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, "
            f"mpi_comm={self.mpi_comm})"
        )


def _make_global() -> ProcessSet:
    process_set = ProcessSet([0])
    process_set.process_set_id = 0
    process_set.ranks = None  # known from init on
    return process_set


global_process_set = _make_global()

_registered: dict[int, ProcessSet] = {}
_dynamic = False
_at_removal: list[Callable[[int], None]] = []


def at_removal(forget: Callable[[int], None]) -> None:
    """Have `forget` called with the id of each set that is removed: another set may get it."""
    _at_removal.append(forget)


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Register a process set after hvd.init(process_sets="dynamic"). Every rank has to call it.

    Returns the set, which can be used at once. Raises ValueError where a set of the same ranks
    exists or the ranks are wrong; MismatchError where the ranks of the job contradict each other;
    NotImplementedError for communicators, which differ from rank to rank.
    """
    runtime = job.current_runtime()
    _need_dynamic("add_process_set")
    comm = process_set.mpi_comm if isinstance(process_set, ProcessSet) else process_set
    if communicators.is_communicator(comm):
        raise NotImplementedError(
            "hvd.add_process_set() takes ranks, the same on all ranks; sets from communicators are "
            "registered by hvd.init(process_sets=[...])"
        )
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    assert process_set.ranks is not None
    problem = _out_of_range(process_set.ranks, runtime)
    if problem:
        raise ValueError(problem)
    # That there is one of these ranks is for all to find out together: a rank that raised by itself
    # would leave the others waiting for it if they add or remove something else.
    process_set.process_set_id = _register(runtime, process_set.ranks)
    _registered[process_set.process_set_id] = process_set
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Take a registered set out of the job. Every rank has to call it.

    Returns False, and does nothing, for the global set and for one that is not registered. Raises
    MismatchError where the ranks of the job contradict each other, in this too.
    """
    runtime = job.current_runtime()
    _need_dynamic("remove_process_set")
    set_id = process_set.process_set_id
    if set_id is None or set_id == 0:
        set_id = _NO_SET
    runtime.enqueue(
        OpKind.REMOVE_PROCESS_SET,
        name=_REGISTRATION,
        target=set_id,
        will_wait=True,
    ).wait()
    if set_id == _NO_SET:
        return False
    _registered.pop(set_id, None)
    process_set.process_set_id = None
    for forget in _at_removal:
        forget(set_id)
    return True


def get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """Return the ids of all registered sets with their global ranks."""
    return job.current_runtime().process_sets()


def registered(set_id: int) -> ProcessSet:
    """Return the process set of an id; ValueError if this process knows none."""
    if set_id == 0:
        return global_process_set
    try:
        return _registered[set_id]
    except KeyError:
        raise ValueError(f"there is no process set {set_id}: it was removed") from None


def begin_process_sets(
    runtime: Runtime,
    own_sets: Sequence[ProcessSet],
    dynamic: bool,
    comm: Any = None,
    job_ranks: Sequence[int] = (),
) -> None:
    """Register what hvd.init(process_sets=...) named on any rank, in one order on all. Collective.

    The job is that of the communicator `comm`, or of the ranks `job_ranks` of the world.

    Raises ValueError on every rank if one of them named something wrong, or if the ranks disagree
    about "dynamic".
    """
    global _dynamic
    topology = runtime.topology
    global_process_set.ranks = list(range(topology.size))
    seen = [global_process_set.ranks]
    problem = None
    for process_set in own_sets:
        problem = problem or _resolve(process_set, runtime, comm, job_ranks)
        problem = problem or _problem_with(process_set, runtime, seen)
        seen.append(process_set.ranks or [])
    said = _exchange(
        runtime,
        {
            "sets": seen[1:],
            "from_comm": [one.mpi_comm is not None for one in own_sets],
            "problem": problem,
            "dynamic": dynamic,
            "rank": topology.rank,
        },
    )
    for one in said:
        if one["problem"]:
            raise ValueError(f"hvd.init(process_sets=...) on rank {one['rank']}: {one['problem']}")
    if len({one["dynamic"] for one in said}) > 1:
        ranks = [one["rank"] for one in said if one["dynamic"]]
        raise ValueError(f'hvd.init(process_sets="dynamic") was called on ranks {ranks} only')
    for ranks in _agreed_order([one["sets"] for one in said]):
        own = next((one for one in own_sets if one.ranks == ranks), None)
        if own is not None and _all_gave_communicators(ranks, said):
            runtime.use_communicator(ranks, communicators.handle_of(own.mpi_comm))
        set_id = _register(runtime, ranks)
        if own is not None:
            own.process_set_id = set_id
            _registered[set_id] = own
    _dynamic = dynamic


def _resolve(
    process_set: ProcessSet, runtime: Runtime, comm: Any, job_ranks: Sequence[int]
) -> str | None:
    """Find the ranks of a set that was made from a communicator, or return what is wrong."""
    if process_set.mpi_comm is None or process_set.process_set_id is not None:
        return None
    if not runtime.over_mpi:
        return (
            f"{process_set} was made from an MPI communicator, but MPI did not start this job's "
            "ranks: for MPI each of them is alone. Start the job with mpirun or horoscalerun --mpi"
        )
    try:
        group = communicators.job_group(comm, job_ranks)
        process_set.ranks = communicators.ranks_in(process_set.mpi_comm, group)
    except ValueError as error:
        return str(error)
    return None


def _all_gave_communicators(ranks: Sequence[int], said: Sequence[dict[str, Any]]) -> bool:
    """Tell whether each member of a set made it from a communicator."""
    return all(
        (list(ranks), True) in zip(one["sets"], one["from_comm"], strict=True)
        for one in said
        if one["rank"] in ranks
    )


def _agreed_order(lists_of_ranks: Sequence[Sequence[list[int]]]) -> list[list[int]]:
    """Return what any rank named, each once: by place in the lists, then by rank."""
    order: list[list[int]] = []
    for same_place in zip_longest(*lists_of_ranks):
        for ranks in same_place:
            if ranks is not None and ranks not in order:
                order.append(ranks)
    return order


def _exchange(runtime: Runtime, said: dict[str, Any]) -> list[dict[str, Any]]:
    payload = json.dumps(said).encode()
    size = runtime.topology.size
    return [json.loads(one) for one in allgather_bytes(runtime, payload, size, _REGISTRATION)]


def _register(runtime: Runtime, ranks: Sequence[int]) -> int:
    handle = runtime.enqueue(
        OpKind.ADD_PROCESS_SET, name=_REGISTRATION, ranks=ranks, will_wait=True
    )
    handle.wait()
    return handle.result()


def _problem_with(
    process_set: ProcessSet, runtime: Runtime, existing: Iterable[list[int]]
) -> str | None:
    if process_set.ranks is None or process_set.process_set_id is not None:
        return f"{process_set} is registered already"
    if process_set.ranks in existing:
        return f"a process set of the ranks {process_set.ranks} exists already"
    return _out_of_range(process_set.ranks, runtime)


def _out_of_range(ranks: Sequence[int], runtime: Runtime) -> str | None:
    size = runtime.topology.size
    if ranks[0] < 0 or ranks[-1] >= size:
        return f"process set {ranks}: ranks are from 0 to {size - 1}"
    return None


def _need_dynamic(function: str) -> None:
    if not _dynamic:
        raise ValueError(
            f'hvd.{function}() needs hvd.init(process_sets="dynamic") or '
            "HOROSCALE_DYNAMIC_PROCESS_SETS=1"
        )


def _forget() -> None:
    """Nothing is registered once the job has ended; the objects can serve the next one."""
    global _dynamic
    for process_set in _registered.values():
        process_set.process_set_id = None
    _registered.clear()
    global_process_set.ranks = None
    _dynamic = False


job.at_end(_forget)
