"""The collectives as users call them. See horoscale.torch for what all of them have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.graph import increment_version

from horoscale import common
from horoscale._core import OpKind, Template
from horoscale.common import Average
from horoscale.common.arguments import resolve_op
from horoscale.common.prepared import (
    prepared_allreduce,
    prepared_broadcast,
    prepared_gather,
    prepared_reducescatter,
)
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.torch import collectives, compiled
from horoscale.torch.collectives import Call, Reduction, Tensors
from horoscale.torch.compiling import is_compiling, outside_graph
from horoscale.torch.compression import Compression, Compressor, divide
from horoscale.torch.handles import Handle
from horoscale.torch.tensors import data_type, is_plain, room_for, written

Splits = Sequence[int] | torch.Tensor | None

for prepare in (prepared_allreduce, prepared_broadcast, prepared_gather, prepared_reducescatter):
    outside_graph(prepare)


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> torch.Tensor:
    """Reduce a tensor over the ranks; every rank gets the result. Average and Sum have gradients.

    Args:
        tensor: of one shape and dtype on all ranks.
        average: deprecated: True for op=Average, False for op=Sum.
        name: tells this operation from others that are pending; None: matched by order.
        compression: how the tensor travels. Compression.fp16 and .bf16 halve what hosts send
            each other: each host's sum, and the result, are rounded to that type.
        op: Average (the default), Sum, Min, Max or Product; of integers and bool also BitwiseAnd,
            BitwiseOr or BitwiseXor. bool: Sum is or, Product is and. Averages of integers are
            divided towards zero.
        prescale_factor: each rank's tensor is multiplied by it before the reduction,
        postscale_factor: and the result by this one.
        process_set: the ranks that take part.
        priority: higher is more urgent.

    Returns:
        A new tensor of the same shape and dtype.

    Raises:
        ValueError: an argument is wrong, or hvd.init() was not called.
        MismatchError: the ranks contradict each other; all of them get this.
        HorovodInternalError: the operation failed; RankFailedError if a rank did.
    """
    if (
        average is None
        and compression is Compression.none
        and not is_compiling()
        and is_plain(tensor)
        and not _is_followed(tensor)
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
        _run(template, tensor, result)
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
    """Start allreduce() and return a handle at once. The tensor may not change meanwhile."""
    if average is None and is_plain(tensor) and not _is_followed(tensor):
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
        memory = tensor.untyped_storage()  # whatever the tensor is made to be meanwhile
        operation = template.start(tensor.data_ptr(), result.data_ptr(), (memory, result))
        return Handle(operation, lambda _: result)
    reduction = Reduction(resolve_op(op, average), prescale_factor, postscale_factor)
    call = Call(name, process_set, priority=priority)
    return collectives.allreduce([tensor], reduction, call).then(_only)


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
    """Do allreduce() in place and return the tensor. Not differentiable."""
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
        _run(template, tensor, tensor)
        increment_version(tensor)
        return tensor
    reduction = Reduction(resolve_op(op, average), prescale_factor, postscale_factor)
    call = Call(name, process_set, will_wait=True, priority=priority)
    return _only(_how().allreduce([tensor], reduction, call, in_place=True).wait())


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
    """Start allreduce_() and return a handle at once. The result is there after synchronize()."""
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
        memory = tensor.untyped_storage()  # where the result will be, whatever the tensor is then
        address = tensor.data_ptr()
        operation = template.start(address, address, memory)
        return Handle(operation, lambda _: written(tensor, memory, address, dtype, shape))
    reduction = Reduction(resolve_op(op, average), prescale_factor, postscale_factor)
    call = Call(name, process_set, priority=priority)
    return collectives.allreduce([tensor], reduction, call, in_place=True).then(_only)


def grouped_allreduce(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> list[torch.Tensor]:
    """Do allreduce() for several tensors at once: all or none. They may differ in shape and dtype.

    Returns:
        The list of results.
    """
    group = _group(tensors)
    wire_dtype, compression = divide(compression, group)
    reduction = Reduction(resolve_op(op, average), prescale_factor, postscale_factor, wire_dtype)
    call = Call(name, process_set, will_wait=True, priority=priority)
    compressed = [compression.compress(tensor) for tensor in group]
    results = _how().allreduce([sent for sent, _ in compressed], reduction, call).wait()
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
    """Start grouped_allreduce() and return one handle for all at once."""
    reduction = Reduction(resolve_op(op, average), prescale_factor, postscale_factor)
    call = Call(name, process_set, priority=priority)
    return collectives.allreduce(_group(tensors), reduction, call)


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
    """Do grouped_allreduce() in place and return the list of the tensors. Not differentiable."""
    reduction = Reduction(resolve_op(op, average), prescale_factor, postscale_factor)
    call = Call(name, process_set, will_wait=True, priority=priority)
    return list(_how().allreduce(_group(tensors), reduction, call, in_place=True).wait())


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
    """Start grouped_allreduce_() and return one handle for all at once."""
    reduction = Reduction(resolve_op(op, average), prescale_factor, postscale_factor)
    call = Call(name, process_set, priority=priority)
    return collectives.allreduce(_group(tensors), reduction, call, in_place=True)


def allgather(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Concatenate the ranks' rows; every rank gets all. Differentiable.

    The gradient of this rank's rows is the average of what the ranks' results got for them.

    Args:
        tensor: of one dtype and shape on all ranks, except for the first dimension, which may
            differ and may be 0. Not 0-d.
        name: tells this operation from others that are pending; None: matched by order.
        process_set: the ranks that take part.
        out: a contiguous tensor for the result, of its dtype, device and shape; it may share memory
            with `tensor` only if that is this rank's part of it. None: a new one is made. Repeated
            calls are faster with one, because new memory is slow. Not differentiable.

    Returns:
        A tensor, `out` if it was given, with the rows of rank 0, rank 1, and so on.

    Raises:
        ValueError: an argument is wrong, or hvd.init() was not called. Where `out` has only too
            many or too few rows this rank alone notices, when the operation is done: `out` is left
            alone, and the other ranks succeed.
        MismatchError: dtypes or other dimensions differ; all ranks get this.
        HorovodInternalError: the operation failed; RankFailedError if a rank did.
    """
    if out is not None and _is_plain_move(tensor, out):
        _gather(OpKind.ALLGATHER, tensor, out, name, process_set)
        return out
    call = Call(name, process_set, will_wait=True)
    if out is not None:
        return _only(collectives.allgather([tensor], call, [out]).wait())
    return _only(_how().allgather([tensor], call).wait())


@outside_graph
def allgather_async(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: torch.Tensor | None = None,
) -> Handle:
    """Start allgather() and return a handle at once."""
    group = None if out is None else [out]
    return collectives.allgather([tensor], Call(name, process_set), group).then(_only)


def grouped_allgather(
    tensors: Tensors,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: Tensors | None = None,
) -> list[torch.Tensor]:
    """Do allgather() for several tensors at once: all or none. Returns the list of results."""
    call = Call(name, process_set, will_wait=True)
    if out is not None:
        return list(collectives.allgather(_group(tensors), call, out).wait())
    return list(_how().allgather(_group(tensors), call).wait())


@outside_graph
def grouped_allgather_async(
    tensors: Tensors,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: Tensors | None = None,
) -> Handle:
    """Start grouped_allgather() and return one handle for all at once."""
    return collectives.allgather(_group(tensors), Call(name, process_set), out)


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Send the root's tensor to all ranks. Differentiable.

    The gradient of the root is the average of what the ranks' results got; the others' is zeros.

    Args:
        tensor: of one shape and dtype on all ranks; its values are read on the root alone.
        root_rank: the global rank that sends, also inside a process set.
        name: tells this operation from others that are pending; None: matched by order.
        process_set: the ranks that take part.

    Returns:
        A new tensor with the root's values.

    Raises:
        ValueError: an argument is wrong (such as a root outside of the process set), or hvd.init()
            was not called.
        MismatchError: shapes, dtypes or roots differ; all ranks get this.
        HorovodInternalError: the operation failed; RankFailedError if a rank did.
    """
    if not is_compiling() and is_plain(tensor) and not _is_followed(tensor):
        result = room_for(tensor)
        template = prepared_broadcast(
            tensor.dtype, tensor.shape, data_type, root_rank, name, process_set, priority=0
        )
        _run(template, tensor, result)
        return result
    call = Call(name, process_set, will_wait=True)
    return _only(_how().broadcast([tensor], root_rank, call).wait())


@outside_graph
def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start broadcast() and return a handle at once."""
    return collectives.broadcast([tensor], root_rank, Call(name, process_set)).then(_only)


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Do broadcast() in place and return the tensor. Not differentiable."""
    if not is_compiling() and is_plain(tensor):
        template = prepared_broadcast(
            tensor.dtype, tensor.shape, data_type, root_rank, name, process_set, priority=0
        )
        _run(template, tensor, tensor)
        increment_version(tensor)
        return tensor
    call = Call(name, process_set, will_wait=True)
    return _only(_how().broadcast([tensor], root_rank, call, in_place=True).wait())


@outside_graph
def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start broadcast_() and return a handle at once. The result is there after synchronize()."""
    call = Call(name, process_set)
    return collectives.broadcast([tensor], root_rank, call, in_place=True).then(_only)


def alltoall(
    tensor: torch.Tensor,
    splits: Splits = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    out: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Send some rows of a tensor to each rank and receive rows from each. Differentiable.

    Args:
        tensor: of one dtype and shape on all ranks, except for the first dimension. Not 0-d.
        splits: how many rows go to each rank, in order: integers, or a 1-d tensor on the CPU of any
            integer dtype. Rows beyond their sum stay. None: the rows are dealt out evenly.
        name: tells this operation from others that are pending; None: matched by order.
        process_set: the ranks that take part.
        out: as for allgather(), but it shares no memory with `tensor`.

    Returns:
        A tensor, `out` if it was given, with the rows received from rank 0, rank 1, and so on; if
        `splits` was given, a tuple of it and how many rows came from each rank, as an int32 tensor.

    Raises:
        ValueError: an argument is wrong, or hvd.init() was not called.
        MismatchError: dtypes or other dimensions differ; all ranks get this.
        HorovodInternalError: the operation failed; RankFailedError if a rank did.
    """
    if splits is None and out is not None and _is_plain_move(tensor, out):
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
    """Start alltoall() and return a handle at once."""
    return _alltoall(tensor, splits, Call(name, process_set), out)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    splits: Splits = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Reduce a tensor over the ranks and leave each rank its share of the rows. Differentiable.

    The gradient is what the ranks' rows got, side by side; times the number of ranks for Sum.

    Args:
        tensor: of one shape and dtype on all ranks. Not 0-d.
        name: tells this operation from others that are pending; None: matched by order.
        compression: how the tensor travels. Compression.fp16 and .bf16 halve what hosts send
            each other: each host's sum, and the result, are rounded to that type.
        op: as allreduce(). Average and Sum have gradients.
        process_set: the ranks that take part.
        prescale_factor: each rank's tensor is multiplied by it before the reduction,
        postscale_factor: and the result by this one.
        splits: how many rows each rank gets, in their order, as alltoall() takes it; the same on
            all ranks, in sum all rows. None: evenly, the lower ranks have one more where their
            number doesn't divide.
        out: a contiguous tensor for the result, of its dtype, device and shape; it may share memory
            with `tensor` only if it is this rank's rows of it. None: a new one is made. Not
            differentiable.

    Returns:
        A tensor, `out` if it was given, with this rank's rows of the result.

    Raises:
        ValueError: an argument is wrong, or hvd.init() was not called.
        MismatchError: the ranks contradict each other; all of them get this.
        HorovodInternalError: the operation failed; RankFailedError if a rank did.
    """
    if (
        splits is None
        and compression is Compression.none
        and out is not None
        and _is_plain_move(tensor, out)
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
        _run(template, tensor, out)
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
    """Start reducescatter() and return a handle at once."""
    reduction = Reduction(resolve_op(op), prescale_factor, postscale_factor)
    group = None if out is None else [out]
    call = Call(name, process_set)
    return collectives.reducescatter([tensor], reduction, call, split_list(splits), group).then(
        _only
    )


def grouped_reducescatter(
    tensors: Tensors,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    splits: Splits = None,
    out: Tensors | None = None,
) -> list[torch.Tensor]:
    """Do reducescatter() for several tensors at once: all or none. Returns the list of results.

    With `out`, a list, a compression of the user's own is refused: its results are made anew.
    """
    group = _group(tensors)
    wire_dtype, compression = divide(compression, group)
    reduction = Reduction(resolve_op(op), prescale_factor, postscale_factor, wire_dtype)
    call = Call(name, process_set, will_wait=True)
    if out is not None:
        if compression is not Compression.none:
            raise ValueError(f"out= can't be combined with compression={compression.__name__}")
        return list(
            collectives.reducescatter(group, reduction, call, split_list(splits), out).wait()
        )
    compressed = [compression.compress(tensor) for tensor in group]
    results = (
        _how()
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
    """Start grouped_reducescatter() and return one handle for all at once."""
    reduction = Reduction(resolve_op(op), prescale_factor, postscale_factor)
    return collectives.reducescatter(
        _group(tensors), reduction, Call(name, process_set), split_list(splits), out
    )


@outside_graph
def join(device: int = -1) -> int:
    """Take no further part in the job's operations until every rank has joined.

    Until then the others reduce without this rank: Average still divides by the number of all
    ranks (see JOIN_AVERAGE in docs/configuration.md), the other operators ignore it. What needs
    this rank, such as allgather, raises HorovodInternalError on the others. Call it when this rank
    has no more data.

    Args:
        device: for Horovod's sake; nothing is allocated for the operations that this rank misses,
            and those of the others on CUDA tensors go through host memory meanwhile.

    Returns:
        The last rank to join.

    Raises:
        ValueError: hvd.init() was not called.
        HorovodInternalError: a rank failed.
    """
    return common.join()


def _is_followed(tensor: torch.Tensor) -> bool:
    """Tell whether autograd follows what is made of a tensor here."""
    return tensor.requires_grad and torch.is_grad_enabled()


def _run(template: Template, source: torch.Tensor, target: torch.Tensor) -> None:
    """Execute an operation on the memory of two plain tensors, whatever they are made to be."""
    memory = source.untyped_storage(), target.untyped_storage()
    # What has no elements has no address; nothing is written there.
    template.run(source.data_ptr(), target.data_ptr() or 1, memory)


def _is_plain_move(tensor: torch.Tensor, out: torch.Tensor) -> bool:
    """Tell whether values can go from the memory of one tensor to that of another as they are."""
    return (
        not is_compiling()
        and is_plain(tensor)
        and is_plain(out)
        and not (out.requires_grad or _is_followed(tensor))
    )


def _gather(
    kind: OpKind, tensor: torch.Tensor, out: torch.Tensor, name: str | None, process_set: ProcessSet
) -> None:
    template = prepared_gather(
        kind, tensor.dtype, tensor.shape, data_type, out, name, process_set, priority=0
    )
    _run(template, tensor, out)
    increment_version(out)


def _only(results: Tensors) -> torch.Tensor:
    [result] = results
    return result


def _group(tensors: Tensors) -> list[torch.Tensor]:
    if isinstance(tensors, torch.Tensor):
        raise ValueError("a grouped operation takes a list of tensors, not one tensor")
    group = list(tensors)
    if not group:
        raise ValueError("a grouped operation needs at least one tensor")
    return group


def _alltoall(tensor: torch.Tensor, splits: Splits, call: Call, out: torch.Tensor | None) -> Handle:
    def start(to_each: Any) -> Handle:
        if out is not None:
            return collectives.alltoall(tensor, to_each, call, out)
        return _how().alltoall(tensor, to_each, call)  # type: ignore[no-any-return]

    if splits is None:
        handle = start(None)
        return handle.then(lambda outcome: outcome[0])
    if isinstance(splits, torch.Tensor):
        _check_counts(splits)
        splits = splits if is_compiling() and out is None else splits.tolist()
    handle = start(splits)
    return handle.then(lambda outcome: (outcome[0], torch.as_tensor(outcome[1], dtype=torch.int32)))


def split_list(splits: Splits) -> Sequence[int] | None:
    """Return numbers of rows as the collectives take them; ValueError if that can't be."""
    if not isinstance(splits, torch.Tensor):
        return splits
    _check_counts(splits)
    return splits.tolist()


def _check_counts(splits: torch.Tensor) -> None:
    dtype = splits.dtype
    counts = not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)
    if not counts or splits.dim() != 1 or splits.device.type != "cpu":
        raise ValueError(
            "splits= takes a 1-d tensor of integers on the CPU, not one of shape "
            f"{tuple(splits.shape)} and {dtype} on {splits.device}"
        )


def _how() -> Any:
    """Return the module whose collectives do a call, here and now."""
    return compiled if is_compiling() else collectives
