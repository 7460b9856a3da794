"""The rules for arguments that every binding shares. See the package's docstring for a summary."""

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
_MOST_RANGES = 16  # of ranks that an error lists


def resolve_op(
    op: int | None, average: bool | None = None, allowed: Iterable[ReduceOp] = tuple(ReduceOp)
) -> ReduceOp:
    """Return the operator that `op`, or the deprecated `average`, asks for; Average by default.

    Raises ValueError where both are given or the operator is unknown, UnsupportedError where it is
    not `allowed`, TypeError where an operator came in the place of `average`.
    """
    if average is not None:
        if op is not None:
            raise ValueError("give op= or average=, not both: average is the deprecated one")
        if isinstance(average, ReduceOp):
            raise TypeError(f"the operator is given by keyword: op={average.label}")
        warnings.warn(
            "average= is deprecated: use op=Average or op=Sum", DeprecationWarning, stacklevel=3
        )
        op = ReduceOp.AVERAGE if average else ReduceOp.SUM
    resolved = ReduceOp.AVERAGE if op is None else ReduceOp(op)
    if resolved not in allowed:
        names = " and ".join(one.label for one in allowed)
        raise UnsupportedError(f"op={resolved.label} is not possible here, only {names}")
    if resolved is ReduceOp.ADASUM:
        raise UnsupportedError("op=Adasum is not in this version of horoscale")
    return resolved


@cache
def check_reduction(dtype: DataType, op: ReduceOp) -> None:
    """Raise UnsupportedError if the operator is not defined for the type (Average of bool)."""
    _core.check_reduction(dtype, op)


def set_id(process_set: ProcessSet) -> int:
    """Return the id of a process set that this process may run an operation on.

    Raises ValueError before hvd.init(), where the set is not registered, and on a rank outside it.
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
    """Return the global ranks of a registered process set, in its order."""
    current_runtime()
    if process_set.ranks is None:
        set_id(process_set)  # raises: it is not registered
    assert process_set.ranks is not None
    return process_set.ranks


def check_root(root_rank: int, process_set: ProcessSet) -> int:
    """Return `root_rank`, a global rank also inside a process set; raise as check_member()."""
    return check_member("root_rank", root_rank, process_set)


def check_member(argument: str, rank: int, process_set: ProcessSet) -> int:
    """Return the `rank` that an argument gives, a global one also inside a process set.

    Raises ValueError if it is outside, or this process may not use the set; TypeError if it is no
    number.
    """
    identity = set_id(process_set)
    number = index(rank)
    members = members_of(process_set)
    if number not in members:
        whose = named(sorted(members), _MOST_RANGES)
        raise ValueError(f"{argument}={number} is not in process set {identity} ({whose})")
    return number


def check_splits(splits: Sequence[int], rows: int, process_set: ProcessSet) -> list[int]:
    """Return alltoall's or scatter's splits as a list: how many `rows` go to each member.

    Raises ValueError if there is not one for each member, one is negative, or they need more rows.
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
    """Return reducescatter's splits as a list: all of the `rows` are dealt out.

    Raises ValueError as check_splits(), and if rows are left.
    """
    result = check_splits(splits, rows, process_set)
    if sum(result) != rows:
        raise ValueError(f"splits={result} deals out {sum(result)} rows, but the tensor has {rows}")
    return result


def check_even_split(rows: int, process_set: ProcessSet) -> None:
    """Raise ValueError if alltoall can't deal out `rows` evenly."""
    members = len(members_of(process_set))
    if rows % members:
        raise ValueError(
            f"the {rows} rows can't be dealt out evenly to {members} ranks: give splits="
        )


def extents_of(shape: Any) -> tuple[int, ...]:
    """Return the extents of a shape, or of a single extent, given as integers of any kind.

    Raises ValueError if one is negative, TypeError if one is no integer.
    """
    try:
        extents: tuple[int, ...] = (index(shape),)
    except TypeError:
        extents = tuple([index(extent) for extent in shape])
    if any(extent < 0 for extent in extents):
        raise ValueError(f"shape={extents} has a negative extent")
    return extents


def titled(operation: str, name: str | None, process_set: int) -> str:
    """Return what errors call an operation: allgather "x" on process set 0."""
    title = operation if name is None else f'{operation} "{name}"'
    return f"{title} on process set {process_set}"


def check_has_rows(shape: Sequence[int], operation: str) -> None:
    """Raise ValueError for a 0-d tensor, which has no first dimension."""
    if not shape:
        raise ValueError(f"{operation} needs a tensor with at least one dimension, not a 0-d one")


def check_out(
    shape: Sequence[int], rows: int | None, row_shape: Sequence[int], operation: str
) -> None:
    """Raise ValueError unless a result of these rows has the shape of out=.

    `rows` is None where their number is known only when the operation is done. `operation` is as
    titled() makes it.
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
    """Raise ValueError unless a group's out= has one result for each tensor."""
    if out is not None and len(out) != len(group):
        raise ValueError(f"out= has {len(out)} elements for a group of {len(group)}")


def scattered_rows(rows: int, process_set: ProcessSet, splits: Sequence[int] | None = None) -> int:
    """Return how many of the `rows` reducescatter leaves on this rank.

    Those that `splits` says; without it, the first ranks of the set take one more where the number
    doesn't divide.
    """
    members = members_of(process_set)
    position = members.index(current_runtime().topology.rank)
    if splits is not None:
        return splits[position]
    return rows // len(members) + (position < rows % len(members))
