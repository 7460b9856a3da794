"""Argument checks that every binding shares. The package's docstring summarizes them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from operator import index
from typing import Any

from horoscale import _core
from horoscale._core import DataType, ReduceOp, UnsupportedError
from horoscale._rank_ranges import named
from horoscale.common.job import current_runtime
from horoscale.common.process_sets import ProcessSet, global_process_set

SUMS = (ReduceOp.AVERAGE, ReduceOp.SUM)
# Operators that process each element separately: those of reducescatter and reduce.
ELEMENTWISE = tuple(op for op in ReduceOp if op is not ReduceOp.ADASUM)
_MOST_RANGES = 16  # ranges of ranks listed in an error


def resolve_op(
    op: int | None, average: bool | None = None, allowed: Iterable[ReduceOp] = tuple(ReduceOp)
) -> ReduceOp:
    """Return the operator selected by `op` or by the deprecated `average`. The default is Average.

    Raises ValueError if both are given or the operator is unknown, UnsupportedError if it is not
    `allowed`, TypeError if an operator was passed in the position of `average`.
    """
    if average is not None:
        if op is not None:
            raise ValueError("give op= or average=, not both; average= is deprecated")
        if isinstance(average, ReduceOp):
            raise TypeError(f"pass the operator by keyword: op={average.label}")
        warnings.warn(
            "average= is deprecated: use op=Average or op=Sum", DeprecationWarning, stacklevel=3
        )
        op = ReduceOp.AVERAGE if average else ReduceOp.SUM
    resolved = ReduceOp.AVERAGE if op is None else ReduceOp(op)
    if resolved is ReduceOp.ADASUM and resolved not in allowed:
        raise UnsupportedError("op=Adasum is not supported here, only by allreduce")
    if resolved not in allowed:
        names = " and ".join(one.label for one in allowed)
        raise UnsupportedError(f"op={resolved.label} is not supported here, only {names}")
    return resolved


@cache
def check_reduction(dtype: DataType, op: ReduceOp) -> None:
    """Raise UnsupportedError if the operator is not defined for the dtype, as Average for bool."""
    _core.check_reduction(dtype, op)


def set_id(process_set: ProcessSet) -> int:
    """Return the id of a process set on which this process may run an operation.

    Raises ValueError before hvd.init(), if the set is not registered, and on a rank outside it.
    """
    runtime = current_runtime()
    if process_set is global_process_set:
        return 0
    if not isinstance(process_set, ProcessSet):
        raise TypeError(f"process_set= takes a ProcessSet, not {process_set!r}")
    if process_set.process_set_id is None or process_set.ranks is None:
        raise ValueError(
            f"{process_set} is not registered: pass it to hvd.init(process_sets=[...]) or to "
            "hvd.add_process_set()"
        )
    if (own := runtime.topology.rank) not in process_set.ranks:
        raise ValueError(f"rank {own} does not belong to {process_set}")
    return process_set.process_set_id


def members_of(process_set: ProcessSet) -> list[int]:
    """Return the global ranks of a registered process set, in the set's order."""
    current_runtime()
    if process_set.ranks is None:
        set_id(process_set)  # raises: it is not registered
    assert process_set.ranks is not None
    return process_set.ranks


def check_root(root_rank: int, process_set: ProcessSet) -> int:
    """Return `root_rank`, a global rank even in a process set. Raises like check_member()."""
    return check_member("root_rank", root_rank, process_set)


def check_member(argument: str, rank: int, process_set: ProcessSet) -> int:
    """Return the `rank` passed as an argument: a global rank, even in a process set.

    Raises ValueError if the rank is not in the set or this process may not use the set, TypeError
    if it is not a number.
    """
    identity = set_id(process_set)
    number = index(rank)
    members = members_of(process_set)
    if number not in members:
        whose = named(sorted(members), _MOST_RANGES)
        raise ValueError(f"{argument}={number} is not in process set {identity} ({whose})")
    return number


def check_splits(splits: Sequence[int], rows: int, process_set: ProcessSet) -> list[int]:
    """Return the splits of alltoall or scatter as a list: the number of `rows` for each member.

    Raises ValueError if there is not one split per member, if one is negative, or if their sum
    exceeds `rows`.
    """
    result = [index(split) for split in splits]
    members = len(members_of(process_set))
    if len(result) != members:
        raise ValueError(f"splits has {len(result)} elements for a process set of {members} ranks")
    if any(split < 0 for split in result):
        raise ValueError(f"splits={result} has a negative element")
    if sum(result) > rows:
        raise ValueError(f"splits={result} needs {sum(result)} rows, but the tensor has {rows}")
    return result


def check_all_split(splits: Sequence[int], rows: int, process_set: ProcessSet) -> list[int]:
    """Return the splits of reducescatter as a list. Their sum is `rows`.

    Raises ValueError like check_splits(), and if the sum is less than `rows`.
    """
    result = check_splits(splits, rows, process_set)
    if sum(result) != rows:
        raise ValueError(f"splits={result} covers {sum(result)} rows, but the tensor has {rows}")
    return result


def check_even_split(rows: int, process_set: ProcessSet) -> None:
    """Raise ValueError if alltoall cannot divide `rows` evenly."""
    members = len(members_of(process_set))
    if rows % members:
        raise ValueError(
            f"the {rows} rows cannot be divided evenly among {members} ranks: give splits="
        )


def extents_of(shape: Any) -> tuple[int, ...]:
    """Return the extents of a shape, given as any kind of integers or as a single one.

    Raises ValueError if one is negative, TypeError if one is not an integer.
    """
    try:
        extents: tuple[int, ...] = (index(shape),)
    except TypeError:
        extents = tuple([index(extent) for extent in shape])
    if any(extent < 0 for extent in extents):
        raise ValueError(f"shape={extents} has a negative extent")
    return extents


def titled(operation: str, name: str | None, process_set: int) -> str:
    """Return the name of an operation for errors, such as: allgather "x" on process set 0."""
    title = operation if name is None else f'{operation} "{name}"'
    return f"{title} on process set {process_set}"


def check_has_rows(shape: Sequence[int], operation: str) -> None:
    """Raise ValueError for a 0-d tensor, which has no first dimension."""
    if not shape:
        raise ValueError(f"{operation} needs a tensor with at least one dimension, not a 0-d one")


def check_out(
    shape: Sequence[int], rows: int | None, row_shape: Sequence[int], operation: str
) -> None:
    """Raise ValueError unless a result with `rows` rows has the shape of `out`.

    `rows` is None if the number is unknown until the operation has completed. `operation` comes
    from titled().
    """
    expected = tuple(row_shape)
    if shape and tuple(shape[1:]) == expected and rows in (None, shape[0]):
        return
    first = "rows" if rows is None else rows
    dimensions = ", ".join(str(extent) for extent in (first, *expected))
    raise ValueError(
        f"out= has shape {tuple(shape)}, the result of {operation} "
        f"({dimensions}{',' * (not expected)})"
    )


def check_group_out(group: Sequence[object], out: Sequence[object] | None) -> None:
    """Raise ValueError unless the `out` of a group has one element for each tensor."""
    if out is not None and len(out) != len(group):
        raise ValueError(f"out= has {len(out)} elements for a group of {len(group)}")


def scattered_rows(rows: int, process_set: ProcessSet, splits: Sequence[int] | None = None) -> int:
    """Return the number of `rows` that reducescatter gives to this rank.

    `splits` gives the numbers, if not None. Otherwise the rows are divided evenly, and the first
    ranks of the set get the remainder, one row each.
    """
    members = members_of(process_set)
    position = members.index(current_runtime().topology.rank)
    if splits is not None:
        return splits[position]
    return rows // len(members) + (position < rows % len(members))
