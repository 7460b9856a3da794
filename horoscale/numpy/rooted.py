"""Operations with a root: reduce and gather, whose result is there, and scatter."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from horoscale import _core
from horoscale._core import OpKind, TensorArg
from horoscale.common import current_runtime
from horoscale.common.arguments import (
    check_has_rows,
    check_reduction,
    check_root,
    check_splits,
    members_of,
    resolve_op,
    set_id,
)
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.numpy.arrays import (
    Array,
    adopt,
    contiguous,
    data_type,
    need_writable,
    split_list,
    tensor_arg,
)
from horoscale.numpy.handles import Handle


def _is_root(root: int) -> bool:
    return current_runtime().topology.rank == root


def _reduce(
    array: Array,
    out: Array | None,
    root: int,
    op: int | None,
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    priority: int,
    will_wait: bool,
) -> _core.Handle:
    operator = resolve_op(op)
    check_reduction(data_type(array.dtype), operator)
    return current_runtime().enqueue(
        OpKind.REDUCE,
        tensors=[tensor_arg(array, out)],
        name=name,
        process_set=set_id(process_set),
        reduce_op=operator,
        prescale=prescale,
        postscale=postscale,
        root=root,
        priority=priority,
        will_wait=will_wait,
        keep_alive=(array, out),
    )


def _reduce_out_of_place(
    tensor: ArrayLike,
    root_rank: int,
    op: int | None,
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    priority: int,
    will_wait: bool = False,
) -> Handle[Array | None]:
    set_id(process_set)  # before its ranks are looked at
    root = check_root(root_rank, process_set)
    array = contiguous(tensor)
    result = np.empty_like(array, subok=False) if _is_root(root) else None
    operation = _reduce(
        array, result, root, op, name, prescale, postscale, process_set, priority, will_wait
    )
    return Handle(operation, lambda _: result)


def _reduce_in_place(
    tensor: Array,
    root_rank: int,
    op: int | None,
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    priority: int,
    will_wait: bool = False,
) -> Handle[Array | None]:
    set_id(process_set)
    root = check_root(root_rank, process_set)
    is_root = _is_root(root)
    array = need_writable(tensor)
    working = contiguous(array)
    out = working if is_root else None
    operation = _reduce(
        working, out, root, op, name, prescale, postscale, process_set, priority, will_wait
    )

    def finish(_: _core.Handle) -> Array | None:
        if is_root and not array.flags.c_contiguous:  # the result is in a copy
            array[...] = working
        return array if is_root else None

    return Handle(operation, finish)


def _gather(
    tensor: ArrayLike,
    root_rank: int,
    name: str | None,
    process_set: ProcessSet,
    priority: int,
    will_wait: bool = False,
) -> Handle[Array | None]:
    identity = set_id(process_set)
    root = check_root(root_rank, process_set)
    array = contiguous(tensor)
    check_has_rows(array.shape, "gather")
    dtype, row_shape, members = array.dtype, array.shape[1:], len(members_of(process_set))
    operation = current_runtime().enqueue(
        OpKind.GATHER,
        tensors=[tensor_arg(array)],
        name=name,
        process_set=identity,
        root=root,
        priority=priority,
        will_wait=will_wait,
        keep_alive=array,
    )

    def finish(done: _core.Handle) -> Array | None:
        if not _is_root(root):
            return None
        rows = sum(done.output_rows(0, members))
        return adopt(done.output(0), dtype, (rows, *row_shape))

    return Handle(operation, finish)


def _scatter(
    tensor: ArrayLike,
    root_rank: int,
    splits: ArrayLike | None,
    name: str | None,
    process_set: ProcessSet,
    priority: int,
    will_wait: bool = False,
) -> Handle[Array]:
    identity = set_id(process_set)
    root = check_root(root_rank, process_set)
    is_root = _is_root(root)
    array = contiguous(tensor)
    check_has_rows(array.shape, "scatter")
    rows_to_each = None
    if is_root and splits is not None:
        rows_to_each = check_splits(split_list(splits), array.shape[0], process_set)
    dtype, row_shape, members = array.dtype, array.shape[1:], len(members_of(process_set))
    # Elsewhere only the type and the shape of a row count.
    described = tensor_arg(array) if is_root else TensorArg(0, 0, data_type(dtype), array.shape)
    operation = current_runtime().enqueue(
        OpKind.SCATTER,
        tensors=[described],
        name=name,
        process_set=identity,
        root=root,
        splits=rows_to_each,
        priority=priority,
        will_wait=will_wait,
        keep_alive=array,
    )

    def finish(done: _core.Handle) -> Array:
        rows = sum(done.output_rows(0, members))
        return adopt(done.output(0), dtype, (rows, *row_shape))

    return Handle(operation, finish)


def reduce(
    tensor: ArrayLike,
    root_rank: int,
    op: int | None = None,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Array | None:
    """Combine the arrays of all ranks, element by element, on one of them.

    Args:
        tensor: an array, of the same shape and type on every rank.
        root_rank: the global rank that gets the result, even in a process set.
        op: as allreduce(); Average by default.
        name: tells this call from others that are pending; None: matched by the order of calls.
        prescale_factor: multiplies every rank's values before.
        postscale_factor: multiplies the result.
        process_set: the ranks that take part.
        priority: higher is more urgent.

    Returns:
        On the root a new array, with the values that allreduce() gives; None elsewhere.

    Raises:
        ValueError: as allreduce(); also for a root outside the process set.
        HorovodInternalError: as allreduce(); MismatchError also if the roots differ.
    """
    return _reduce_out_of_place(
        tensor,
        root_rank,
        op,
        name,
        prescale_factor,
        postscale_factor,
        process_set,
        priority,
        will_wait=True,
    ).wait()


def reduce_async(
    tensor: ArrayLike,
    root_rank: int,
    op: int | None = None,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Handle[Array | None]:
    """Begin reduce() and return a handle for poll() and synchronize().

    The array must not be changed until the operation is done. Raises ValueError and
    DuplicateNameError as reduce(); synchronize() raises the other errors.
    """
    return _reduce_out_of_place(
        tensor, root_rank, op, name, prescale_factor, postscale_factor, process_set, priority
    )


def reduce_(
    tensor: Array,
    root_rank: int,
    op: int | None = None,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Array | None:
    """Do reduce() in place: on the root the result replaces the values of `tensor`.

    Returns the array on the root and None elsewhere, where it stays as it is. Raises as reduce(),
    and TypeError or ValueError if `tensor` is not an array that can be changed.
    """
    return _reduce_in_place(
        tensor,
        root_rank,
        op,
        name,
        prescale_factor,
        postscale_factor,
        process_set,
        priority,
        will_wait=True,
    ).wait()


def reduce_async_(
    tensor: Array,
    root_rank: int,
    op: int | None = None,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Handle[Array | None]:
    """Begin reduce_() and return a handle for poll() and synchronize().

    The array must be left alone until synchronize() has returned. Raises ValueError, TypeError and
    DuplicateNameError as reduce_(); synchronize() raises the other errors.
    """
    return _reduce_in_place(
        tensor, root_rank, op, name, prescale_factor, postscale_factor, process_set, priority
    )


def gather(
    tensor: ArrayLike,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Array | None:
    """Join the arrays of all ranks along the first dimension, in the order of the ranks, on one.

    Args:
        tensor: an array with at least one dimension; the first may differ between the ranks and may
            be 0, the others and the type are the same.
        root_rank: the global rank that gets the result, even in a process set.
        name: tells this call from others that are pending; None: matched by the order of calls.
        process_set: the ranks that take part.
        priority: higher is more urgent.

    Returns:
        On the root a new array, None elsewhere.

    Raises:
        ValueError: as allgather(); also for a root outside the process set.
        HorovodInternalError: as allgather(); MismatchError also if the roots differ.
    """
    return _gather(tensor, root_rank, name, process_set, priority, will_wait=True).wait()


def gather_async(
    tensor: ArrayLike,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Handle[Array | None]:
    """Begin gather() and return a handle for poll() and synchronize().

    The array must not be changed until the operation is done. Raises ValueError and
    DuplicateNameError as gather(); synchronize() raises the other errors.
    """
    return _gather(tensor, root_rank, name, process_set, priority)


def scatter(
    tensor: ArrayLike,
    root_rank: int,
    splits: ArrayLike | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Array:
    """Deal out the rows of the root's array: each rank gets the next ones, in the order of ranks.

    Args:
        tensor: an array with at least one dimension. Elsewhere than on the root its rows don't
            count and may be none: it says the type and the shape of a row, which are the same on
            all ranks.
        root_rank: the global rank that sends, even in a process set.
        splits: how many rows go to each rank; rows beyond their sum stay. Read on the root alone.
            None: evenly, and the lower ranks get one more where the number doesn't divide.
        name: tells this call from others that are pending; None: matched by the order of calls.
        process_set: the ranks that take part.
        priority: higher is more urgent.

    Returns:
        A new array with this rank's rows.

    Raises:
        ValueError: as allgather(); also for a root outside the process set and, on the root, for
            `splits` of a wrong length, with a negative element, or that need more rows than there
            are.
        HorovodInternalError: as allgather(); MismatchError also if the roots differ.
    """
    return _scatter(tensor, root_rank, splits, name, process_set, priority, will_wait=True).wait()


def scatter_async(
    tensor: ArrayLike,
    root_rank: int,
    splits: ArrayLike | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Handle[Array]:
    """Begin scatter() and return a handle for poll() and synchronize().

    The array must not be changed until the operation is done. Raises ValueError and
    DuplicateNameError as scatter(); synchronize() raises the other errors.
    """
    return _scatter(tensor, root_rank, splits, name, process_set, priority)
