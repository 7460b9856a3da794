"""Registration of the sets that any rank lists in hvd.init(process_sets=...), on all ranks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from horoscale._core import Runtime, SetFlags
from horoscale.common import communicators
from horoscale.common.payloads import allgather_bytes
from horoscale.common.process_sets import (
    REGISTRATION,
    ProcessSet,
    begin,
    problem_if_registered,
    problem_with_range,
    ranks_by_rule,
    register,
)


def begin_process_sets(
    runtime: Runtime,
    own_sets: Sequence[ProcessSet],
    dynamic: bool,
    comm: Any = None,
    job_ranks: Sequence[int] = (),
) -> None:
    """Register the sets that any rank passes to hvd.init(process_sets=...). Collective.

    They are registered in the same order on all ranks. The job is that of the communicator `comm`,
    or of the world ranks `job_ranks`.

    Raises ValueError on every rank if one of them lists an invalid set, or if the ranks disagree
    about "dynamic".
    """
    begin(runtime, dynamic)
    topology = runtime.topology
    seen = [list(range(topology.size))]
    problem = None
    for place, process_set in enumerate(own_sets):
        problem = problem or _resolve(process_set, runtime, comm, job_ranks)
        problem = problem or _problem_with(process_set, runtime, seen)
        if any(process_set is before for before in own_sets[:place]):
            problem = problem or f"{process_set} is given twice"
        seen.append(process_set.ranks or [])
    own_names = _names(seen[1:])
    said = _exchange(
        runtime,
        {
            "sets": seen[1:],
            "distinct": [one.distinct for one in own_sets],
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
        raise ValueError(
            f'hvd.init(process_sets="dynamic") was called on ranks {ranks} only: '
            "call it on all ranks or on none"
        )
    agreed = _agreed_order([_names(one["sets"]) for one in said])
    distinct = {name: _is_distinct(name, said) for name in agreed}
    for name in agreed:
        own = own_sets[own_names.index(name)] if name in own_names else None
        ranks = list(name.ranks)
        if own is not None and _all_gave_communicators(name, said):
            runtime.use_communicator(ranks, communicators.handle_of(own.mpi_comm))
        flags = SetFlags.ORDERED | (SetFlags.DISTINCT if distinct[name] else SetFlags(0))
        register(runtime, ranks, flags, own)


class _Name(NamedTuple):
    """Identifies a set passed to init(): its ranks, and the number of earlier sets of these ranks.

    Distinct sets of the same ranks are matched by this number.
    """

    ranks: tuple[int, ...]
    before: int


def _names(lists_of_ranks: Sequence[Sequence[int]]) -> list[_Name]:
    """Return the names of the sets that a rank lists."""
    seen: Counter[tuple[int, ...]] = Counter()
    names = []
    for ranks in map(tuple, lists_of_ranks):
        names.append(_Name(ranks, seen[ranks]))
        seen[ranks] += 1
    return names


def _is_distinct(name: _Name, said: Sequence[dict[str, Any]]) -> bool:
    """Return whether a set is distinct. Raises ValueError if the ranks disagree about it."""
    by_answer: dict[bool, list[int]] = {}
    for one in said:
        names = _names(one["sets"])
        if name in names:
            by_answer.setdefault(one["distinct"][names.index(name)], []).append(one["rank"])
    if len(by_answer) > 1:
        raise ValueError(
            f"hvd.init(process_sets=...): the set of ranks {list(name.ranks)} is distinct on ranks "
            f"{by_answer[True]} and not on ranks {by_answer[False]}"
        )
    return True in by_answer


def _resolve(
    process_set: ProcessSet, runtime: Runtime, comm: Any, job_ranks: Sequence[int]
) -> str | None:
    """Set the ranks of a set created from a communicator, or return the problem."""
    if process_set.survival is not None and process_set.survival.rule is not None:
        # The ranks are resolved in this job, regardless of an earlier one.
        try:
            process_set.ranks = ranks_by_rule(process_set, runtime)
        except ValueError as error:
            return str(error)
        return None
    if process_set.mpi_comm is None or process_set.process_set_id is not None:
        return None
    if not runtime.over_mpi:
        return (
            f"{process_set} was made from an MPI communicator, but MPI did not start this job's "
            "ranks, so MPI sees each of them alone. Start the job with mpirun or horoscalerun --mpi"
        )
    try:
        group = communicators.job_group(comm, job_ranks)
        ranks = communicators.ranks_in(process_set.mpi_comm, group)
        process_set.ranks = ranks if process_set.ordered else sorted(ranks)
    except ValueError as error:
        return str(error)
    return None


def _all_gave_communicators(name: _Name, said: Sequence[dict[str, Any]]) -> bool:
    """Return whether all members of a set created it from a communicator."""
    return all(
        (name, True) in zip(_names(one["sets"]), one["from_comm"], strict=True)
        for one in said
        if one["rank"] in name.ranks
    )


def _agreed_order(lists_of_names: Sequence[Sequence[_Name]]) -> list[_Name]:
    """Return all ranks' names without duplicates, by position in the lists, then by rank."""
    same_places = zip_longest(*lists_of_names)
    return list(dict.fromkeys(name for names in same_places for name in names if name is not None))


def _exchange(runtime: Runtime, said: dict[str, Any]) -> list[dict[str, Any]]:
    payload = json.dumps(said).encode()
    size = runtime.topology.size
    return [json.loads(one) for one in allgather_bytes(runtime, payload, size, REGISTRATION)]


def _problem_with(
    process_set: ProcessSet, runtime: Runtime, existing: Iterable[list[int]]
) -> str | None:
    if problem := problem_if_registered(process_set):
        return problem
    assert process_set.ranks is not None
    if process_set.ranks in existing and not process_set.distinct:
        return f"a process set of the ranks {process_set.ranks} already exists"
    return problem_with_range(process_set.ranks, runtime)
