"""Operations that combine values of the ranks: allreduce. See scattering.py for reducescatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from horoscale import _core
from horoscale._core import Encoding, OpKind, ReduceOp
from horoscale.common import current_runtime
from horoscale.common.arguments import (
    check_reduction,
    resolve_op,
    set_id,
)
from horoscale.common.prepared import prepared_allreduce
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.numpy.arrays import (
    Array,
    address,
    contiguous,
    data_type,
    is_plain,
    need_writable,
    tensor_arg,
)
from horoscale.numpy.compression import AnyCompressor, Compression, divide
from horoscale.numpy.handles import Handle


class Call(NamedTuple):
    """The arguments of allreduce and reducescatter other than the arrays."""

    op: ReduceOp
    name: str | None
    prescale_factor: float
    postscale_factor: float
    process_set: ProcessSet
    priority: int
    encoding: Encoding = Encoding.NONE
    splits: list[int] | None = None  # of reducescatter


def enqueue(
    kind: OpKind,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    call: Call,
    will_wait: bool,
) -> _core.Handle:
    """Start a reduction. Raises ValueError without arrays, UnsupportedError for their dtype."""
    if not inputs:
        raise ValueError("a group needs at least one array")
    for array in inputs:
        check_reduction(data_type(array.dtype), call.op)
    return current_runtime().enqueue(
        kind,
        tensors=[tensor_arg(array, out) for array, out in zip(inputs, outputs, strict=True)],
        name=call.name,
        process_set=set_id(call.process_set),
        reduce_op=call.op,
        prescale=call.prescale_factor,
        postscale=call.postscale_factor,
        priority=call.priority,
        will_wait=will_wait,
        encoding=call.encoding,
        splits=call.splits,
        keep_alive=(inputs, outputs),
    )


def _allreduce(
    tensors: Sequence[ArrayLike], call: Call, will_wait: bool = False
) -> Handle[list[Array]]:
    inputs = [contiguous(tensor) for tensor in tensors]
    outputs = [np.empty_like(array, subok=False) for array in inputs]
    operation = enqueue(OpKind.ALLREDUCE, inputs, outputs, call, will_wait)
    return Handle(operation, lambda _: outputs)


def _allreduce_in_place(
    tensors: Sequence[Array], call: Call, will_wait: bool = False
) -> Handle[list[Array]]:
    arrays = [need_writable(tensor) for tensor in tensors]
    working = [contiguous(array) for array in arrays]
    operation = enqueue(OpKind.ALLREDUCE, working, working, call, will_wait)

    def finish(_: _core.Handle) -> list[Array]:
        for array, result in zip(arrays, working, strict=True):
            if not array.flags.c_contiguous:  # the result is in a copy
                array[...] = result
        return arrays

    return Handle(operation, finish)


def allreduce(
    tensor: ArrayLike,
    average: bool | None = None,
    name: str | None = None,
    compression: AnyCompressor = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Array:
    """Reduce the arrays of all ranks element-wise. Every rank gets the result.

    Args:
        tensor: an array with the same shape and dtype on every rank.
        average: deprecated: True for op=Average, False for op=Sum.
        name: identifies this call among pending ones. None: matched by call order.
        compression: how data between hosts is encoded. Compression.fp16 and .bf16 halve it: each
            host's sum and the result are rounded to that type.
        op: Average (the default), Sum, Min, Max or Product; for integers and bool also BitwiseAnd,
            BitwiseOr or BitwiseXor. The average of integers is their wrapping sum, divided and
            rounded towards zero. For bool, Sum is a logical or, and Product a logical and.
        prescale_factor: factor applied to each rank's values before the reduction.
        postscale_factor: factor applied to the result.
        process_set: the ranks that take part.
        priority: higher is more urgent.

    Returns:
        A new array, bitwise equal on every rank.

    Raises:
        ValueError: before hvd.init(); the dtype is not supported, in general or by the operator;
            both `op` and `average` were given; this rank is not in the process set.
        MismatchError: shapes, dtypes, operators or factors differ between the ranks.
        DuplicateNameError: an operation with this name is pending.
        RankFailedError: a rank of the process set died or left.
    """
    if average is None and compression is Compression.none and is_plain(tensor):
        result = np.empty_like(tensor)
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
        template.run(address(tensor), address(result), (tensor, result))
        return result
    encoding, compression = divide(compression)
    call = Call(
        resolve_op(op, average),
        name,
        prescale_factor,
        postscale_factor,
        process_set,
        priority,
        encoding,
    )
    sent, context = compression.compress(contiguous(tensor))
    return compression.decompress(_allreduce([sent], call, will_wait=True).wait()[0], context)


def allreduce_async(
    tensor: ArrayLike,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Handle[Array]:
    """Start allreduce() and return a handle for poll() and synchronize().

    Do not modify the array until the operation has completed. Raises ValueError and
    DuplicateNameError like allreduce(). synchronize() raises the other errors.
    """
    if average is None and is_plain(tensor):
        result = np.empty_like(tensor)
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
        operation = template.start(address(tensor), address(result), (tensor, result))
        return Handle(operation, lambda _: result)
    call = Call(
        resolve_op(op, average), name, prescale_factor, postscale_factor, process_set, priority
    )
    return _allreduce([tensor], call).single()


def allreduce_(
    tensor: Array,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Array:
    """Run allreduce() in place: overwrite `tensor` with the result, and return it.

    Raises like allreduce(), and TypeError or ValueError if `tensor` is not a writable array. After
    an error its values are undefined.
    """
    if average is None and is_plain(tensor):
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
        place = address(tensor)
        template.run(place, place, tensor)
        return tensor
    call = Call(
        resolve_op(op, average), name, prescale_factor, postscale_factor, process_set, priority
    )
    return _allreduce_in_place([tensor], call, will_wait=True).wait()[0]


def allreduce_async_(
    tensor: Array,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Handle[Array]:
    """Start allreduce_() and return a handle for poll() and synchronize().

    Do not use the array until synchronize() has returned. Raises ValueError, TypeError and
    DuplicateNameError like allreduce_(). synchronize() raises the other errors.
    """
    if average is None and is_plain(tensor):
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
        place = address(tensor)
        operation = template.start(place, place, tensor)
        return Handle(operation, lambda _: tensor)
    call = Call(
        resolve_op(op, average), name, prescale_factor, postscale_factor, process_set, priority
    )
    return _allreduce_in_place([tensor], call).single()


def grouped_allreduce(
    tensors: Sequence[ArrayLike],
    average: bool | None = None,
    name: str | None = None,
    compression: AnyCompressor = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> list[Array]:
    """Run allreduce() on several arrays, all or none, in one negotiation.

    The arrays of a group may differ in shape and dtype, but must be the same on all ranks.
    Arguments and errors are those of allreduce(). An empty group raises ValueError.
    """
    encoding, compression = divide(compression)
    call = Call(
        resolve_op(op, average),
        name,
        prescale_factor,
        postscale_factor,
        process_set,
        priority,
        encoding,
    )
    pairs = [compression.compress(contiguous(tensor)) for tensor in tensors]
    results = _allreduce([sent for sent, _ in pairs], call, will_wait=True).wait()
    return [
        compression.decompress(result, context)
        for result, (_, context) in zip(results, pairs, strict=True)
    ]


def grouped_allreduce_async(
    tensors: Sequence[ArrayLike],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Handle[list[Array]]:
    """Start grouped_allreduce() and return a handle whose result is the list of arrays.

    Do not modify the arrays until the operation has completed. Raises like allreduce_async().
    """
    call = Call(
        resolve_op(op, average), name, prescale_factor, postscale_factor, process_set, priority
    )
    return _allreduce(tensors, call)


def grouped_allreduce_(
    tensors: Sequence[Array],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> list[Array]:
    """Run grouped_allreduce() in place: overwrite the arrays with the results.

    Raises like allreduce_(); an empty group raises ValueError.
    """
    call = Call(
        resolve_op(op, average), name, prescale_factor, postscale_factor, process_set, priority
    )
    return _allreduce_in_place(tensors, call, will_wait=True).wait()


def grouped_allreduce_async_(
    tensors: Sequence[Array],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Handle[list[Array]]:
    """Start grouped_allreduce_() and return a handle whose result is the list of arrays.

    Do not use the arrays until synchronize() has returned. Raises like allreduce_async_().
    """
    call = Call(
        resolve_op(op, average), name, prescale_factor, postscale_factor, process_set, priority
    )
    return _allreduce_in_place(tensors, call)
