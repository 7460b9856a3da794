"""Operations that move values between ranks: allgather, broadcast, alltoall."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from horoscale import _core
from horoscale._core import OpKind
from horoscale.common import current_runtime
from horoscale.common.arguments import (
    check_even_split,
    check_group_out,
    check_has_rows,
    check_root,
    check_splits,
    members_of,
    set_id,
    titled,
)
from horoscale.common.prepared import prepared_broadcast, prepared_gather
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.numpy.arrays import (
    Array,
    address,
    adopt,
    contiguous,
    data_type,
    gathered_arg,
    is_plain,
    need_room,
    need_writable,
    split_list,
    tensor_arg,
)
from horoscale.numpy.handles import Handle


def _allgather(
    tensors: Sequence[ArrayLike],
    name: str | None,
    process_set: ProcessSet,
    priority: int,
    out: Sequence[Array] | None = None,
    will_wait: bool = False,
) -> Handle[list[Array]]:
    identity = set_id(process_set)
    members = len(members_of(process_set))
    inputs = [contiguous(tensor) for tensor in tensors]
    if not inputs:
        raise ValueError("a group needs at least one array")
    for array in inputs:
        check_has_rows(array.shape, "allgather")
    check_group_out(inputs, out)
    given: list[Array | None] = [None] * len(inputs)
    if out is not None:
        title = titled("allgather", name, identity)
        given = [need_room(one, None, like, title) for one, like in zip(out, inputs, strict=True)]
    # The inputs' dtypes and shapes are needed at completion; their values are not.
    results = [(array.dtype, array.shape[1:]) for array in inputs]
    operation = current_runtime().enqueue(
        OpKind.ALLGATHER,
        tensors=[gathered_arg(*pair) for pair in zip(inputs, given, strict=True)],
        name=name,
        process_set=identity,
        priority=priority,
        will_wait=will_wait,
        keep_alive=(inputs, given),
    )

    def take(done: _core.Handle, i: int) -> Array:
        dtype, row_shape = results[i]
        return adopt(done.output(i), dtype, (sum(done.output_rows(i, members)), *row_shape))

    def finish(done: _core.Handle) -> list[Array]:
        return [take(done, i) if room is None else room for i, room in enumerate(given)]

    return Handle(operation, finish)


def _broadcast(
    array: Array,
    out: Array,
    root_rank: int,
    name: str | None,
    process_set: ProcessSet,
    priority: int,
    will_wait: bool,
) -> _core.Handle:
    identity = set_id(process_set)
    return current_runtime().enqueue(
        OpKind.BROADCAST,
        tensors=[tensor_arg(array, out)],
        name=name,
        process_set=identity,
        root=check_root(root_rank, process_set),
        priority=priority,
        will_wait=will_wait,
        keep_alive=(array, out),
    )


def _broadcast_out_of_place(
    tensor: ArrayLike,
    root_rank: int,
    name: str | None,
    process_set: ProcessSet,
    priority: int,
    will_wait: bool = False,
) -> Handle[Array]:
    array = contiguous(tensor)
    result = np.empty_like(array, subok=False)
    operation = _broadcast(array, result, root_rank, name, process_set, priority, will_wait)
    return Handle(operation, lambda _: result)


def _broadcast_in_place(
    tensor: Array,
    root_rank: int,
    name: str | None,
    process_set: ProcessSet,
    priority: int,
    will_wait: bool = False,
) -> Handle[Array]:
    array = need_writable(tensor)
    working = contiguous(array)
    operation = _broadcast(working, working, root_rank, name, process_set, priority, will_wait)

    def finish(_: _core.Handle) -> Array:
        if not array.flags.c_contiguous:  # the result is in a copy
            array[...] = working
        return array

    return Handle(operation, finish)


def _alltoall(
    tensor: ArrayLike,
    splits: ArrayLike | None,
    name: str | None,
    process_set: ProcessSet,
    priority: int,
    out: Array | None = None,
    will_wait: bool = False,
) -> Handle[Array | tuple[Array, Array]]:
    identity = set_id(process_set)
    array = contiguous(tensor)
    check_has_rows(array.shape, "alltoall")
    if splits is None:
        check_even_split(array.shape[0], process_set)
        rows_to_each = None
    else:
        rows_to_each = check_splits(split_list(splits), array.shape[0], process_set)
    if out is not None:
        need_room(out, None, array, titled("alltoall", name, identity))
    dtype, row_shape, members = array.dtype, array.shape[1:], len(members_of(process_set))
    operation = current_runtime().enqueue(
        OpKind.ALLTOALL,
        tensors=[gathered_arg(array, out)],
        name=name,
        process_set=identity,
        splits=rows_to_each,
        priority=priority,
        will_wait=will_wait,
        keep_alive=(array, out),
    )

    def finish(done: _core.Handle) -> Array | tuple[Array, Array]:
        rows = done.output_rows(0, members)
        result = out
        if result is None:
            result = adopt(done.output(0), dtype, (sum(rows), *row_shape))
        return result if rows_to_each is None else (result, np.array(rows, np.int32))

    return Handle(operation, finish)


def allgather(
    tensor: ArrayLike,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
    out: Array | None = None,
) -> Array:
    """Concatenate the arrays of all ranks along the first dimension, in rank order.

    Args:
        tensor: an array with at least one dimension. The first dimension may differ between the
            ranks and may be 0. The other dimensions and the dtype must be the same.
        name: identifies this call among pending ones. None: matched by call order.
        process_set: the ranks that take part.
        priority: higher is more urgent.
        out: a contiguous array for the result, with its dtype and shape. It may share memory with
            `tensor` only if `tensor` is this rank's part of it. None: allocate a new array. Reusing
            `out` in repeated calls is faster, because new memory is slow.

    Returns:
        The concatenated array, the same on every rank; `out` if it was given.

    Raises:
        ValueError: before hvd.init(); the array is 0-d or its dtype is not supported; this rank is
            not in the process set; `out` has another dtype or shape. If only its number of rows is
            wrong, this rank alone raises, after the operation; `out` is then unchanged, and the
            other ranks succeed.
        MismatchError: dtypes or other dimensions differ between the ranks.
        DuplicateNameError: an operation with this name is pending.
        RankFailedError: a rank of the process set died or left.
    """
    if is_plain(tensor) and is_plain(out):
        template = prepared_gather(
            OpKind.ALLGATHER,
            tensor.dtype,
            tensor.shape,
            data_type,
            out,
            name,
            process_set,
            priority,
        )
        # An empty array may have a null address, but the library needs a nonzero one. It writes
        # nothing there.
        template.run(address(tensor), address(out) or 1, (tensor, out))
        return out
    group = None if out is None else [out]
    return _allgather([tensor], name, process_set, priority, group, will_wait=True).wait()[0]


def allgather_async(
    tensor: ArrayLike,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
    out: Array | None = None,
) -> Handle[Array]:
    """Start allgather() and return a handle for poll() and synchronize().

    Do not modify the array or use `out` until the operation has completed. Raises ValueError and
    DuplicateNameError like allgather(). synchronize() raises the other errors, and ValueError for
    the rows of `out`.
    """
    group = None if out is None else [out]
    return _allgather([tensor], name, process_set, priority, group).single()


def grouped_allgather(
    tensors: Sequence[ArrayLike],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
    out: Sequence[Array] | None = None,
) -> list[Array]:
    """Run allgather() on several arrays, all or none, in one negotiation.

    Arguments and errors are those of allgather(). `out` is a list. An empty group raises
    ValueError.
    """
    return _allgather(tensors, name, process_set, priority, out, will_wait=True).wait()


def grouped_allgather_async(
    tensors: Sequence[ArrayLike],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
    out: Sequence[Array] | None = None,
) -> Handle[list[Array]]:
    """Start grouped_allgather() and return a handle whose result is the list of arrays.

    Do not modify the arrays until the operation has completed. Raises like allgather_async().
    """
    return _allgather(tensors, name, process_set, priority, out)


def broadcast(
    tensor: ArrayLike,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Array:
    """Return the root's array on every rank.

    Args:
        tensor: an array with the same shape and dtype on every rank. Only the root's values are
            read.
        root_rank: the global rank of the sender, even in a process set.
        name: identifies this call among pending ones. None: matched by call order.
        process_set: the ranks that take part.
        priority: higher is more urgent.

    Returns:
        A new array.

    Raises:
        ValueError: before hvd.init(); the dtype is not supported; the root or this rank is not in
            the process set.
        MismatchError: shapes, dtypes or roots differ between the ranks.
        DuplicateNameError: an operation with this name is pending.
        RankFailedError: a rank of the process set died or left.
    """
    if is_plain(tensor):
        result = np.empty_like(tensor)
        template = prepared_broadcast(
            tensor.dtype, tensor.shape, data_type, root_rank, name, process_set, priority
        )
        template.run(address(tensor), address(result), (tensor, result))
        return result
    handle = _broadcast_out_of_place(tensor, root_rank, name, process_set, priority, will_wait=True)
    return handle.wait()


def broadcast_async(
    tensor: ArrayLike,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Handle[Array]:
    """Start broadcast() and return a handle for poll() and synchronize().

    Do not modify the root's array until the operation has completed. Raises ValueError and
    DuplicateNameError like broadcast(). synchronize() raises the other errors.
    """
    return _broadcast_out_of_place(tensor, root_rank, name, process_set, priority)


def broadcast_(
    tensor: Array,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Array:
    """Run broadcast() in place: overwrite `tensor` with the root's values, and return it.

    Raises like broadcast(), and TypeError or ValueError if `tensor` is not a writable array. After
    an error its values are undefined.
    """
    if is_plain(tensor):
        template = prepared_broadcast(
            tensor.dtype, tensor.shape, data_type, root_rank, name, process_set, priority
        )
        place = address(tensor)
        template.run(place, place, tensor)
        return tensor
    return _broadcast_in_place(
        tensor, root_rank, name, process_set, priority, will_wait=True
    ).wait()


def broadcast_async_(
    tensor: Array,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Handle[Array]:
    """Start broadcast_() and return a handle for poll() and synchronize().

    Do not use the array until synchronize() has returned. Raises ValueError, TypeError and
    DuplicateNameError like broadcast_(). synchronize() raises the other errors.
    """
    return _broadcast_in_place(tensor, root_rank, name, process_set, priority)


def alltoall(
    tensor: ArrayLike,
    splits: ArrayLike | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
    out: Array | None = None,
) -> Array | tuple[Array, Array]:
    """Send some rows to each rank, and concatenate the received rows in rank order.

    Args:
        tensor: an array with at least one dimension. The first dimension may differ between the
            ranks. The other dimensions and the dtype must be the same.
        splits: 1-d integers, the number of rows for each rank of the set, in order. None: the rows
            are divided evenly.
        name: identifies this call among pending ones. None: matched by call order.
        process_set: the ranks that take part.
        priority: higher is more urgent.
        out: a contiguous array for the result, with its dtype and shape. It must not share memory
            with `tensor`. None: allocate a new array.

    Returns:
        The concatenated array; `out` if it was given. If `splits` was given, a tuple of this array
        and the number of rows received from each rank (int32).

    Raises:
        ValueError: as in allgather(), also for `out`; `splits` has the wrong length, a negative
            element, or a sum that exceeds the number of rows; without it, the rows cannot be
            divided evenly.
        HorovodInternalError: as in allgather().
    """
    if splits is None and is_plain(tensor) and is_plain(out):
        template = prepared_gather(
            OpKind.ALLTOALL,
            tensor.dtype,
            tensor.shape,
            data_type,
            out,
            name,
            process_set,
            priority,
        )
        # An empty array may have a null address, but the library needs a nonzero one. It writes
        # nothing there.
        template.run(address(tensor), address(out) or 1, (tensor, out))
        return out
    return _alltoall(tensor, splits, name, process_set, priority, out, will_wait=True).wait()


def alltoall_async(
    tensor: ArrayLike,
    splits: ArrayLike | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
    out: Array | None = None,
) -> Handle[Array | tuple[Array, Array]]:
    """Start alltoall() and return a handle for poll() and synchronize().

    Do not modify the array or use `out` until the operation has completed. Raises ValueError and
    DuplicateNameError like alltoall(). synchronize() raises the other errors, and ValueError for
    the rows of `out`.
    """
    return _alltoall(tensor, splits, name, process_set, priority, out)
