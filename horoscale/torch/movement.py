"""Collectives that move values between the ranks: allgather, broadcast, alltoall.

The documentation of horoscale.torch describes what all collectives have in common.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.graph import increment_version

from horoscale._core import OpKind
from horoscale.common.prepared import (
    prepared_broadcast,
    prepared_gather,
)
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.torch import collectives
from horoscale.torch.calls import (
    Splits,
    as_group,
    check_counts,
    how,
    is_followed,
    is_plain_move,
    only,
    run,
)
from horoscale.torch.collectives import Call, Tensors
from horoscale.torch.compiling import is_compiling, outside_graph
from horoscale.torch.handles import Handle
from horoscale.torch.tensors import data_type, is_plain, room_for


def allgather(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Concatenate the ranks' tensors along the first dimension, on every rank. Differentiable.

    The gradient of this rank's rows is the average over the ranks of their gradients for these
    rows.

    Args:
        tensor: has the same dtype and shape on all ranks, except for the first dimension, which may
            differ and may be 0. Not 0-d.
        name: identifies this operation among pending ones. None: matched by call order.
        process_set: the ranks that take part.
        out: a contiguous tensor for the result, with its dtype, device and shape. It may share
            memory with `tensor` only if `tensor` is this rank's part of it. None: allocate a new
            tensor. Reusing `out` in repeated calls is faster, because new memory is slow. Not
            differentiable.

    Returns:
        A tensor, `out` if it was given, with the rows of rank 0, rank 1, and so on.

    Raises:
        ValueError: an argument is invalid, or hvd.init() was not called. If `out` has the wrong
            number of rows, only this rank raises it, after the operation. `out` is then unchanged,
            and the other ranks succeed.
        MismatchError: dtypes or other dimensions differ; raised on all ranks.
        HorovodInternalError: the operation failed; RankFailedError if a rank did.
    """
    if out is not None and is_plain_move(tensor, out):
        _gather(OpKind.ALLGATHER, tensor, out, name, process_set)
        return out
    call = Call(name, process_set, will_wait=True)
    if out is not None:
        return only(collectives.allgather([tensor], call, [out]).wait())
    return only(how().allgather([tensor], call).wait())


@outside_graph
def allgather_async(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: torch.Tensor | None = None,
) -> Handle:
    """Start allgather() and return a handle immediately."""
    group = None if out is None else [out]
    return collectives.allgather([tensor], Call(name, process_set), group).then(only)


def grouped_allgather(
    tensors: Tensors,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: Tensors | None = None,
) -> list[torch.Tensor]:
    """Run allgather() on several tensors, all or none. Returns the list of results."""
    call = Call(name, process_set, will_wait=True)
    if out is not None:
        return list(collectives.allgather(as_group(tensors), call, out).wait())
    return list(how().allgather(as_group(tensors), call).wait())


@outside_graph
def grouped_allgather_async(
    tensors: Tensors,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: Tensors | None = None,
) -> Handle:
    """Start grouped_allgather() and return a single handle immediately."""
    return collectives.allgather(as_group(tensors), Call(name, process_set), out)


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Send the root's tensor to all ranks. Differentiable.

    The gradient on the root is the average of the ranks' gradients. On other ranks it is zero.

    Args:
        tensor: has the same shape and dtype on all ranks. Only the root's values are read.
        root_rank: the global rank of the sender, even in a process set.
        name: identifies this operation among pending ones. None: matched by call order.
        process_set: the ranks that take part.

    Returns:
        A new tensor with the root's values.

    Raises:
        ValueError: an argument is invalid (such as a root outside the process set), or hvd.init()
            was not called.
        MismatchError: shapes, dtypes or roots differ; raised on all ranks.
        HorovodInternalError: the operation failed; RankFailedError if a rank did.
    """
    if not is_compiling() and is_plain(tensor) and not is_followed(tensor):
        result = room_for(tensor)
        template = prepared_broadcast(
            tensor.dtype, tensor.shape, data_type, root_rank, name, process_set, priority=0
        )
        run(template, tensor, result)
        return result
    call = Call(name, process_set, will_wait=True)
    return only(how().broadcast([tensor], root_rank, call).wait())


@outside_graph
def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start broadcast() and return a handle immediately."""
    return collectives.broadcast([tensor], root_rank, Call(name, process_set)).then(only)


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Run broadcast() in place and return the tensor. Not differentiable."""
    if not is_compiling() and is_plain(tensor):
        template = prepared_broadcast(
            tensor.dtype, tensor.shape, data_type, root_rank, name, process_set, priority=0
        )
        run(template, tensor, tensor)
        increment_version(tensor)
        return tensor
    call = Call(name, process_set, will_wait=True)
    return only(how().broadcast([tensor], root_rank, call, in_place=True).wait())


@outside_graph
def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start broadcast_() and return a handle. The tensor is ready after synchronize()."""
    call = Call(name, process_set)
    return collectives.broadcast([tensor], root_rank, call, in_place=True).then(only)


def alltoall(
    tensor: torch.Tensor,
    splits: Splits = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Send some rows of a tensor to each rank and receive rows from each. Differentiable.

    Args:
        tensor: has the same dtype and shape on all ranks, except for the first dimension. Not 0-d.
        splits: the number of rows for each rank, in order: integers, or a 1-d CPU tensor of any
            integer dtype. Rows beyond their sum are not sent. None: the rows are divided evenly.
        name: identifies this operation among pending ones. None: matched by call order.
        process_set: the ranks that take part.
        out: as in allgather(), but it must not share memory with `tensor`.

    Returns:
        A tensor, `out` if it was given, with the rows received from rank 0, rank 1, and so on. If
        `splits` was given, a tuple of this tensor and an int32 tensor with the number of rows
        received from each rank.

    Raises:
        ValueError: an argument is invalid, or hvd.init() was not called.
        MismatchError: dtypes or other dimensions differ; raised on all ranks.
        HorovodInternalError: the operation failed; RankFailedError if a rank did.
    """
    if splits is None and out is not None and is_plain_move(tensor, out):
        _gather(OpKind.ALLTOALL, tensor, out, name, process_set)
        return out
    return _alltoall(tensor, splits, Call(name, process_set, will_wait=True), out).wait()  # type: ignore[no-any-return]


@outside_graph
def alltoall_async(
    tensor: torch.Tensor,
    splits: Splits = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: torch.Tensor | None = None,
) -> Handle:
    """Start alltoall() and return a handle immediately."""
    return _alltoall(tensor, splits, Call(name, process_set), out)


def _gather(
    kind: OpKind, tensor: torch.Tensor, out: torch.Tensor, name: str | None, process_set: ProcessSet
) -> None:
    template = prepared_gather(
        kind, tensor.dtype, tensor.shape, data_type, out, name, process_set, priority=0
    )
    run(template, tensor, out)
    increment_version(out)


def _alltoall(tensor: torch.Tensor, splits: Splits, call: Call, out: torch.Tensor | None) -> Handle:
    def start(to_each: Any) -> Handle:
        if out is not None:
            return collectives.alltoall(tensor, to_each, call, out)
        return how().alltoall(tensor, to_each, call)  # type: ignore[no-any-return]

    if splits is None:
        handle = start(None)
        return handle.then(lambda outcome: outcome[0])
    if isinstance(splits, torch.Tensor):
        check_counts(splits)
        splits = splits if is_compiling() and out is None else splits.tolist()
    handle = start(splits)
    return handle.then(lambda outcome: (outcome[0], torch.as_tensor(outcome[1], dtype=torch.int32)))
