"""Collectives that combine values of the ranks: allreduce and reducescatter; and join.

The documentation of horoscale.torch describes what all collectives have in common.
"""

from __future__ import annotations

import torch
from torch.autograd.graph import increment_version

from horoscale import common
from horoscale.common import Average
from horoscale.common.arguments import ELEMENTWISE, resolve_op
from horoscale.common.prepared import (
    prepared_allreduce,
    prepared_reducescatter,
)
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.torch import collectives
from horoscale.torch.calls import (
    Splits,
    as_group,
    how,
    is_followed,
    is_plain_move,
    only,
    run,
    split_list,
)
from horoscale.torch.collectives import Call, Reduction, Tensors
from horoscale.torch.compiling import is_compiling, outside_graph
from horoscale.torch.compression import AnyCompressor, Compression, divide
from horoscale.torch.handles import Handle
from horoscale.torch.tensors import data_type, is_plain, room_for, written


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: AnyCompressor = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> torch.Tensor:
    """Reduce a tensor over the ranks; every rank gets the result. Average and Sum have gradients.

    Args:
        tensor: must have the same shape and dtype on all ranks.
        average: deprecated: True for op=Average, False for op=Sum.
        name: identifies this operation among pending ones. None: matched by call order.
        compression: how data between hosts is encoded. Compression.fp16 and .bf16 halve it: each
            host's sum and the result are rounded to that type.
        op: Average (the default), Sum, Min, Max or Product; for integers and bool also BitwiseAnd,
            BitwiseOr or BitwiseXor. For bool, Sum is a logical or, and Product a logical and.
            Averages of integers are rounded towards zero.
        prescale_factor: factor applied to each rank's tensor before the reduction.
        postscale_factor: factor applied to the result.
        process_set: the ranks that take part.
        priority: higher is more urgent.

    Returns:
        A new tensor of the same shape and dtype.

    Raises:
        ValueError: an argument is invalid, or hvd.init() was not called.
        MismatchError: the ranks' calls do not match; raised on all of them.
        HorovodInternalError: the operation failed; RankFailedError if a rank did.
    """
    if (
        average is None
        and compression is Compression.none
        and not is_compiling()
        and is_plain(tensor)
        and not is_followed(tensor)
    ):
        result = room_for(tensor)
        template = prepared_allreduce(
            tensor.dtype,
            tensor.shape,
            data_type,
            op,
            name,
            prescale_factor,
            postscale_factor,
            process_set,
            priority,
        )
        run(template, tensor, result)
        return result
    [result] = grouped_allreduce(
        [tensor],
        average,
        name,
        compression,
        op,
        prescale_factor,
        postscale_factor,
        process_set,
        priority,
    )
    return result


@outside_graph
def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Handle:
    """Start allreduce() and return a handle immediately.

    Do not modify the tensor until the operation has completed.
    """
    if average is None and is_plain(tensor) and not is_followed(tensor):
        template = prepared_allreduce(
            tensor.dtype,
            tensor.shape,
            data_type,
            op,
            name,
            prescale_factor,
            postscale_factor,
            process_set,
            priority,
        )
        result = room_for(tensor)
        memory = tensor.untyped_storage()  # even if the tensor's storage is replaced meanwhile
        operation = template.start(tensor.data_ptr(), result.data_ptr(), (memory, result))
        return Handle(operation, lambda _: result)
    reduction = Reduction(resolve_op(op, average), prescale_factor, postscale_factor)
    call = Call(name, process_set, priority=priority)
    return collectives.allreduce([tensor], reduction, call).then(only)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> torch.Tensor:
    """Run allreduce() in place and return the tensor. Not differentiable."""
    if average is None and not is_compiling() and is_plain(tensor):
        template = prepared_allreduce(
            tensor.dtype,
            tensor.shape,
            data_type,
            op,
            name,
            prescale_factor,
            postscale_factor,
            process_set,
            priority,
        )
        run(template, tensor, tensor)
        increment_version(tensor)
        return tensor
    reduction = Reduction(resolve_op(op, average), prescale_factor, postscale_factor)
    call = Call(name, process_set, will_wait=True, priority=priority)
    return only(how().allreduce([tensor], reduction, call, in_place=True).wait())


@outside_graph
def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Handle:
    """Start allreduce_() and return a handle. The tensor is ready after synchronize()."""
    if average is None and is_plain(tensor):
        dtype, shape = tensor.dtype, tensor.shape
        template = prepared_allreduce(
            dtype,
            shape,
            data_type,
            op,
            name,
            prescale_factor,
            postscale_factor,
            process_set,
            priority,
        )
        memory = tensor.untyped_storage()  # the result's memory, even if the tensor is changed
        address = tensor.data_ptr()
        operation = template.start(address, address, memory)
        return Handle(operation, lambda _: written(tensor, memory, address, dtype, shape))
    reduction = Reduction(resolve_op(op, average), prescale_factor, postscale_factor)
    call = Call(name, process_set, priority=priority)
    return collectives.allreduce([tensor], reduction, call, in_place=True).then(only)


def grouped_allreduce(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    compression: AnyCompressor = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> list[torch.Tensor]:
    """Run allreduce() on several tensors, all or none. They may differ in shape and dtype.

    Returns:
        The list of results.
    """
    group = as_group(tensors)
    encoding, compression = divide(compression, group)
    reduction = Reduction(resolve_op(op, average), prescale_factor, postscale_factor, encoding)
    call = Call(name, process_set, will_wait=True, priority=priority)
    compressed = [compression.compress(tensor) for tensor in group]
    results = how().allreduce([sent for sent, _ in compressed], reduction, call).wait()
    return [
        compression.decompress(result, context)
        for result, (_, context) in zip(results, compressed, strict=True)
    ]


@outside_graph
def grouped_allreduce_async(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Handle:
    """Start grouped_allreduce() and return a single handle immediately."""
    reduction = Reduction(resolve_op(op, average), prescale_factor, postscale_factor)
    call = Call(name, process_set, priority=priority)
    return collectives.allreduce(as_group(tensors), reduction, call)


def grouped_allreduce_(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> list[torch.Tensor]:
    """Run grouped_allreduce() in place and return the list of tensors. Not differentiable."""
    reduction = Reduction(resolve_op(op, average), prescale_factor, postscale_factor)
    call = Call(name, process_set, will_wait=True, priority=priority)
    return list(how().allreduce(as_group(tensors), reduction, call, in_place=True).wait())


@outside_graph
def grouped_allreduce_async_(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Handle:
    """Start grouped_allreduce_() and return a single handle immediately."""
    reduction = Reduction(resolve_op(op, average), prescale_factor, postscale_factor)
    call = Call(name, process_set, priority=priority)
    return collectives.allreduce(as_group(tensors), reduction, call, in_place=True)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: AnyCompressor = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    splits: Splits = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Reduce a tensor over the ranks and scatter the rows of the result. Differentiable.

    The gradient is the concatenation of the ranks' gradients, times the number of ranks for Sum.

    Args:
        tensor: must have the same shape and dtype on all ranks. Not 0-d.
        name: identifies this operation among pending ones. None: matched by call order.
        compression: as in allreduce(). The sums of hosts are encoded for ranks of other hosts.
        op: as in allreduce(). Average and Sum have gradients.
        process_set: the ranks that take part.
        prescale_factor: factor applied to each rank's tensor before the reduction.
        postscale_factor: factor applied to the result.
        splits: the number of rows for each rank, in order, in any form that alltoall() accepts.
            Must be the same on all ranks and add up to the number of rows. None: the rows are
            divided evenly, and the lower ranks get the remainder, one row each.
        out: a contiguous tensor for the result, with its dtype, device and shape. It may share
            memory with `tensor` only if it is this rank's rows of it. None: allocate a new tensor.
            Not differentiable.

    Returns:
        A tensor, `out` if it was given, with this rank's rows of the result.

    Raises:
        ValueError: an argument is invalid, or hvd.init() was not called.
        MismatchError: the ranks' calls do not match; raised on all of them.
        HorovodInternalError: the operation failed; RankFailedError if a rank did.
    """
    if (
        splits is None
        and compression is Compression.none
        and out is not None
        and is_plain_move(tensor, out)
    ):
        template = prepared_reducescatter(
            tensor.dtype,
            tensor.shape,
            data_type,
            out,
            op,
            name,
            prescale_factor,
            postscale_factor,
            process_set,
            priority=0,
        )
        run(template, tensor, out)
        increment_version(out)
        return out
    group = None if out is None else [out]
    [result] = grouped_reducescatter(
        [tensor],
        name,
        compression,
        op,
        process_set,
        prescale_factor,
        postscale_factor,
        splits,
        group,
    )
    return result


@outside_graph
def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    splits: Splits = None,
    out: torch.Tensor | None = None,
) -> Handle:
    """Start reducescatter() and return a handle immediately."""
    reduction = Reduction(resolve_op(op, allowed=ELEMENTWISE), prescale_factor, postscale_factor)
    group = None if out is None else [out]
    call = Call(name, process_set)
    return collectives.reducescatter([tensor], reduction, call, split_list(splits), group).then(
        only
    )


def grouped_reducescatter(
    tensors: Tensors,
    name: str | None = None,
    compression: AnyCompressor = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    splits: Splits = None,
    out: Tensors | None = None,
) -> list[torch.Tensor]:
    """Run reducescatter() on several tensors, all or none. Returns the list of results.

    `out` is a list. It cannot be combined with a custom compressor, which allocates its results.
    """
    group = as_group(tensors)
    encoding, compression = divide(compression, group)
    reduction = Reduction(
        resolve_op(op, allowed=ELEMENTWISE), prescale_factor, postscale_factor, encoding
    )
    call = Call(name, process_set, will_wait=True)
    if out is not None:
        if compression is not Compression.none:
            raise ValueError(f"out= cannot be combined with compression={compression!r}")
        return list(
            collectives.reducescatter(group, reduction, call, split_list(splits), out).wait()
        )
    compressed = [compression.compress(tensor) for tensor in group]
    results = (
        how()
        .reducescatter([sent for sent, _ in compressed], reduction, call, split_list(splits))
        .wait()
    )
    return [
        compression.decompress(result, context)
        for result, (_, context) in zip(results, compressed, strict=True)
    ]


@outside_graph
def grouped_reducescatter_async(
    tensors: Tensors,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    splits: Splits = None,
    out: Tensors | None = None,
) -> Handle:
    """Start grouped_reducescatter() and return a single handle immediately."""
    reduction = Reduction(resolve_op(op, allowed=ELEMENTWISE), prescale_factor, postscale_factor)
    return collectives.reducescatter(
        as_group(tensors), reduction, Call(name, process_set), split_list(splits), out
    )


@outside_graph
def join(device: int = -1) -> int:
    """Signal that this rank has no more data, and wait until every rank has joined.

    Until then, the other ranks reduce without this rank. Average still divides by the number of all
    ranks (see JOIN_AVERAGE in docs/configuration.md); the other operators ignore this rank.
    Operations that need this rank, such as allgather, raise HorovodInternalError on the other
    ranks.

    Args:
        device: accepted for compatibility with Horovod. Nothing is allocated for the operations in
            which this rank does not take part. Until all ranks have joined, operations on CUDA
            tensors go through host memory.

    Returns:
        The rank that joined last.

    Raises:
        ValueError: hvd.init() was not called.
        HorovodInternalError: a rank failed.
    """
    return common.join()
