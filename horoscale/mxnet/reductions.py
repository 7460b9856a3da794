"""Operations that combine values of the ranks: allreduce and reducescatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horoscale._core import Encoding, OpKind, ReduceOp, Signature
from horoscale.common.arguments import check_reduction, resolve_op, scattered_rows, set_id
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.mxnet.arrays import check_arrays, check_rows, data_type, new_like, tensors_of
from horoscale.mxnet.compression import AnyCompressor, Compression, divide
from horoscale.mxnet.engine import name_of, push
from horoscale.mxnet.errors import InvalidArgumentError


def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
    compression: AnyCompressor = Compression.none,
) -> Any:
    """Reduce an array over the ranks. Every rank gets the result.

    Args:
        tensor: an NDArray with the same shape and dtype on all ranks.
        average: True (the default) for the average, False for the sum.
        name: identifies this operation among pending ones. None: matched by call order.
        priority: higher is more urgent, both in MXNet's engine and between ranks.
        prescale_factor: factor applied to each rank's values before the reduction.
        postscale_factor: factor applied to the result.
        process_set: the ranks that take part.
        op: instead of `average`: Average, Sum, Adasum, Min, Max or Product.
        compression: how data between hosts is encoded.

    Returns:
        A new array, which can be used immediately. Its values arrive later.

    Raises:
        ValueError: an argument is invalid, or hvd.init() was not called.
        TypeError: `tensor` is not an NDArray.
        MXNetError: raised when the result is waited for: the ranks' calls do not match
            (MismatchError), or a rank failed.
    """
    group = grouped_allreduce(
        [tensor],
        average,
        name,
        priority,
        prescale_factor,
        postscale_factor,
        process_set,
        op,
        compression,
    )
    return group[0]


def allreduce_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Any:
    """Run allreduce() in place and return the array. Errors are those of allreduce()."""
    group = grouped_allreduce_(
        [tensor], average, name, priority, prescale_factor, postscale_factor, process_set, op
    )
    return group[0]


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
    compression: AnyCompressor = Compression.none,
) -> list[Any]:
    """Run allreduce() on several arrays, all or none of them. Returns the list of results."""
    encoding, compressor = divide(compression)
    compressed = [compressor.compress(array) for array in check_arrays(tensors)]
    sent = [array for array, _ in compressed]
    results = [new_like(array) for array in sent]
    scales = prescale_factor, postscale_factor
    reduce_into(
        results, sent, _resolved(average, op), name, priority, scales, process_set, encoding
    )
    return [
        compressor.decompress(result, context)
        for result, (_, context) in zip(results, compressed, strict=True)
    ]


def grouped_allreduce_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[Any]:
    """Run grouped_allreduce() in place and return the list of arrays."""
    arrays = check_arrays(tensors)
    scales = prescale_factor, postscale_factor
    reduce_into(arrays, arrays, _resolved(average, op), name, priority, scales, process_set)
    return arrays


def reduce_into(
    outputs: Sequence[Any],
    inputs: Sequence[Any],
    op: ReduceOp,
    name: str | None,
    priority: int,
    scales: tuple[float, float],
    process_set: ProcessSet,
    encoding: Encoding = Encoding.NONE,
    kind: OpKind = OpKind.ALLREDUCE,
) -> None:
    """Push the reduction of arrays from check_arrays(). An output may be the input."""
    identity = set_id(process_set)
    for array in inputs:
        check_reduction(data_type(array), op)
    signature = Signature(
        kind,
        tensors_of(inputs),
        name_of(kind.name.lower(), name, identity),
        identity,
        op,
        float(scales[0]),
        float(scales[1]),
        priority=priority,
        encoding=encoding,
    )
    push(signature, inputs, outputs)


def reducescatter(
    tensor: Any,
    op: int | None = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce an array over the ranks and scatter the rows of the result.

    Args:
        tensor: an NDArray with the same shape and dtype on all ranks. Not 0-d.
        op: Average (the default) or Sum.
        name: as for allreduce().
        priority: as for allreduce().
        process_set: the ranks that take part.
        prescale_factor: factor applied to each rank's values before the reduction.
        postscale_factor: factor applied to the result.

    Returns:
        A new array with this rank's rows. The rows are divided evenly, and the lower ranks get the
        remainder, one row each.

    Raises:
        ValueError, TypeError, MXNetError: as in allreduce().
    """
    group = grouped_reducescatter(
        [tensor], op, name, priority, process_set, prescale_factor, postscale_factor
    )
    return group[0]


def grouped_reducescatter(
    tensors: Sequence[Any],
    op: int | None = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Run reducescatter() on several arrays, all or none of them. Returns the list of results."""
    resolved = resolve_op(op)
    arrays = check_arrays(tensors)
    set_id(process_set)  # raises for an invalid set
    for array in arrays:
        check_rows(array, "reducescatter")
    results = [new_like(array, scattered_rows(array.shape[0], process_set)) for array in arrays]
    scales = prescale_factor, postscale_factor
    reduce_into(
        results, arrays, resolved, name, priority, scales, process_set, kind=OpKind.REDUCESCATTER
    )
    return results


def _resolved(average: bool | None, op: int | None) -> ReduceOp:
    if average is not None and op is not None:
        raise InvalidArgumentError("give op= or average=, not both")
    return resolve_op(ReduceOp.SUM if average is not None and not average else op)
