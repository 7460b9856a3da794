"""Rooted operations: reduce, gather and scatter."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from horoscale import _core
from horoscale._core import OpKind, TensorArg
from horoscale.common import current_runtime
from horoscale.common.arguments import (
    ELEMENTWISE,
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
    operator = resolve_op(op, allowed=ELEMENTWISE)
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
    set_id(process_set)  # raises for an invalid set
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
    # On other ranks, only the dtype and the row shape matter.
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
    """Reduce the arrays of all ranks element-wise. The root gets the result.

    Args:
        tensor: an array with the same shape and dtype on every rank.
        root_rank: the global rank that gets the result, even in a process set.
        op: as in allreduce(); Average by default.
        name: identifies this call among pending ones. None: matched by call order.
        prescale_factor: factor applied to each rank's values before the reduction.
        postscale_factor: factor applied to the result.
        process_set: the ranks that take part.
        priority: higher is more urgent.

    Returns:
        On the root, a new array with the same values as from allreduce(); on other ranks None.

    Raises:
        ValueError: as in allreduce(); also for a root outside the process set.
        HorovodInternalError: as in allreduce(); MismatchError also if the roots differ.
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
    """Start reduce() and return a handle for poll() and synchronize().

    Do not modify the array until the operation has completed. Raises ValueError and
    DuplicateNameError like reduce(). synchronize() raises the other errors.
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
    """Run reduce() in place: on the root, overwrite `tensor` with the result.

    Returns the array on the root and None on other ranks, where it is unchanged. Raises like
    reduce(), and TypeError or ValueError if `tensor` is not a writable array.
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
    """Start reduce_() and return a handle for poll() and synchronize().

    Do not use the array until synchronize() has returned. Raises ValueError, TypeError and
    DuplicateNameError like reduce_(). synchronize() raises the other errors.
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
    """Concatenate the arrays of all ranks along the first dimension, in rank order, on the root.

    Args:
        tensor: an array with at least one dimension. The first dimension may differ between the
            ranks and may be 0. The other dimensions and the dtype must be the same.
        root_rank: the global rank that gets the result, even in a process set.
        name: identifies this call among pending ones. None: matched by call order.
        process_set: the ranks that take part.
        priority: higher is more urgent.

    Returns:
        On the root, a new array; on other ranks None.

    Raises:
        ValueError: as in allgather(); also for a root outside the process set.
        HorovodInternalError: as in allgather(); MismatchError also if the roots differ.
    """
    return _gather(tensor, root_rank, name, process_set, priority, will_wait=True).wait()


def gather_async(
    tensor: ArrayLike,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Handle[Array | None]:
    """Start gather() and return a handle for poll() and synchronize().

    Do not modify the array until the operation has completed. Raises ValueError and
    DuplicateNameError like gather(). synchronize() raises the other errors.
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
    """Distribute the rows of the root's array to the ranks, in order.

    Args:
        tensor: an array with at least one dimension. On ranks other than the root it only defines
            the dtype and the row shape, which must be the same on all ranks; its rows are ignored,
            and there may be none.
        root_rank: the global rank of the sender, even in a process set.
        splits: the number of rows for each rank. Rows beyond their sum are not sent. Read on the
            root only. None: the rows are divided evenly, and the lower ranks get the remainder, one
            row each.
        name: identifies this call among pending ones. None: matched by call order.
        process_set: the ranks that take part.
        priority: higher is more urgent.

    Returns:
        A new array with this rank's rows.

    Raises:
        ValueError: as in allgather(); also for a root outside the process set and, on the root, for
            `splits` of a wrong length, with a negative element, or with a sum that exceeds the
            number of rows.
        HorovodInternalError: as in allgather(); MismatchError also if the roots differ.
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
    """Start scatter() and return a handle for poll() and synchronize().

    Do not modify the array until the operation has completed. Raises ValueError and
    DuplicateNameError like scatter(). synchronize() raises the other errors.
    """
    return _scatter(tensor, root_rank, splits, name, process_set, priority)
