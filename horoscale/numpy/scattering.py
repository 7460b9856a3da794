"""reducescatter: each rank gets some rows of the result."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from horoscale._core import OpKind, ReduceOp
from horoscale.common.arguments import (
    ELEMENTWISE,
    check_all_split,
    check_group_out,
    check_has_rows,
    resolve_op,
    scattered_rows,
    set_id,
    titled,
)
from horoscale.common.prepared import prepared_reducescatter
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.numpy.arrays import (
    Array,
    address,
    contiguous,
    data_type,
    is_plain,
    need_room,
    split_list,
)
from horoscale.numpy.compression import AnyCompressor, Compression, divide
from horoscale.numpy.handles import Handle
from horoscale.numpy.reductions import Call, enqueue


def _reducescatter(
    tensors: Sequence[ArrayLike],
    call: Call,
    out: Sequence[Array] | None,
    will_wait: bool = False,
) -> Handle[list[Array]]:
    identity = set_id(call.process_set)  # raises for an invalid set
    title = titled("reducescatter", call.name, identity)
    inputs = [contiguous(tensor) for tensor in tensors]
    check_group_out(inputs, out)
    outputs = []
    for i, array in enumerate(inputs):
        check_has_rows(array.shape, "reducescatter")
        if call.splits is not None:
            check_all_split(call.splits, array.shape[0], call.process_set)
        rows = scattered_rows(array.shape[0], call.process_set, call.splits)
        if out is None:
            outputs.append(np.empty((rows, *array.shape[1:]), array.dtype))
        else:
            outputs.append(need_room(out[i], rows, array, title))
    operation = enqueue(OpKind.REDUCESCATTER, inputs, outputs, call, will_wait)
    return Handle(operation, lambda _: outputs)


def reducescatter(
    tensor: ArrayLike,
    name: str | None = None,
    op: int = ReduceOp.AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    priority: int = 0,
    splits: ArrayLike | None = None,
    out: Array | None = None,
    compression: AnyCompressor = Compression.none,
) -> Array:
    """Reduce the arrays of all ranks element-wise, and scatter the rows of the result.

    Args:
        tensor: an array with at least one dimension, with the same shape and dtype on every rank.
        name: identifies this call among pending ones. None: matched by call order.
        op: as in allreduce().
        process_set: the ranks that take part.
        prescale_factor: factor applied to each rank's values before the reduction.
        postscale_factor: factor applied to the result.
        priority: higher is more urgent.
        splits: the number of rows for each rank, in order. Must be the same on all ranks and add up
            to the number of rows. None: the rows are divided evenly, and the lower ranks get the
            remainder, one row each.
        out: a contiguous array for this rank's rows, with their dtype and shape. It may share
            memory with `tensor` only if it is these rows of it. None: allocate a new array.
        compression: as in allreduce(). The sums of hosts are encoded for ranks of other hosts.
            `out` cannot be combined with a custom compressor, which allocates its results.

    Returns:
        This rank's rows of the result; `out` if it was given.

    Raises:
        ValueError: as in allreduce(); also for a 0-d array, for `splits` of a wrong length, with a
            negative element or a wrong sum, for an `out` of a wrong dtype or shape, and for an
            `out` with a custom compressor.
        HorovodInternalError: as in allreduce().
    """
    plain = splits is None and compression is Compression.none
    if plain and is_plain(tensor) and is_plain(out):
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
            priority,
        )
        template.run(address(tensor), address(out), (tensor, out))
        return out
    group = None if out is None else [out]
    return grouped_reducescatter(
        [tensor],
        name,
        op,
        process_set,
        prescale_factor,
        postscale_factor,
        priority,
        splits,
        group,
        compression,
    )[0]


def reducescatter_async(
    tensor: ArrayLike,
    name: str | None = None,
    op: int = ReduceOp.AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    priority: int = 0,
    splits: ArrayLike | None = None,
    out: Array | None = None,
) -> Handle[Array]:
    """Start reducescatter() and return a handle for poll() and synchronize().

    Do not modify the array or use `out` until the operation has completed. Raises ValueError and
    DuplicateNameError like reducescatter(). synchronize() raises the other errors.
    """
    group = None if out is None else [out]
    handle = grouped_reducescatter_async(
        [tensor], name, op, process_set, prescale_factor, postscale_factor, priority, splits, group
    )
    return handle.single()


def grouped_reducescatter(
    tensors: Sequence[ArrayLike],
    name: str | None = None,
    op: int = ReduceOp.AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    priority: int = 0,
    splits: ArrayLike | None = None,
    out: Sequence[Array] | None = None,
    compression: AnyCompressor = Compression.none,
) -> list[Array]:
    """Run reducescatter() on several arrays, all or none, in one negotiation.

    Arguments and errors are those of reducescatter(). `out` is a list. An empty group raises
    ValueError.
    """
    encoding, compressor = divide(compression)
    if out is not None and compressor is not Compression.none:
        raise ValueError(f"out= cannot be combined with compression={compression!r}")
    call = Call(
        resolve_op(op, allowed=ELEMENTWISE),
        name,
        prescale_factor,
        postscale_factor,
        process_set,
        priority,
        encoding,
        None if splits is None else split_list(splits),
    )
    pairs = [compressor.compress(contiguous(tensor)) for tensor in tensors]
    results = _reducescatter([sent for sent, _ in pairs], call, out, will_wait=True).wait()
    return [
        compressor.decompress(result, context)
        for result, (_, context) in zip(results, pairs, strict=True)
    ]


def grouped_reducescatter_async(
    tensors: Sequence[ArrayLike],
    name: str | None = None,
    op: int = ReduceOp.AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    priority: int = 0,
    splits: ArrayLike | None = None,
    out: Sequence[Array] | None = None,
) -> Handle[list[Array]]:
    """Start grouped_reducescatter() and return a handle whose result is the list of arrays.

    Do not modify the arrays until the operation has completed. Raises like reducescatter_async().
    """
    call = Call(
        resolve_op(op, allowed=ELEMENTWISE),
        name,
        prescale_factor,
        postscale_factor,
        process_set,
        priority,
        splits=None if splits is None else split_list(splits),
    )
    return _reducescatter(tensors, call, out)
