"""The public collectives. See horoscale.tensorflow for what they have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from horoscale._core import UnsupportedError
from horoscale.common.arguments import ELEMENTWISE, members_of, resolve_op
from horoscale.common.basics import Average, Sum
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.tensorflow import collectives, loader
from horoscale.tensorflow.collectives import Call, Reduction, as_tensor
from horoscale.tensorflow.compression import AnyCompressor, Compression, divide
from horoscale.tensorflow.naming import operation_name

Tensors = Sequence[Any]


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompressor = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    priority: int = 0,
) -> Any:
    """Reduce a tensor over the ranks; every rank gets the result. Average and Sum have gradients.

    Args:
        tensor: a tensor or variable with the same shape and dtype on all ranks, or
            tf.IndexedSlices, whose values and indices are gathered.
        average: deprecated: True for op=Average, False for op=Sum.
        device_dense: the device of the operation for tensors.
        device_sparse: the device of the operation for tf.IndexedSlices.
        compression: how data between hosts is encoded. Compression.fp16 and .bf16 halve it: each
            host's sum and the result are rounded to that type.
        op: Average (the default), Sum, Min, Max or Product; for integers and bool also BitwiseAnd,
            BitwiseOr or BitwiseXor. For bool, Sum is a logical or, and Product a logical and.
            Averages of integers are rounded towards zero; those of tf.IndexedSlices become
            floating-point numbers.
        prescale_factor: factor applied to each rank's tensor before the reduction.
        postscale_factor: factor applied to the result.
        name: identifies this operation among pending ones. None: in eager mode, operations are
            matched by call order; in a graph, the tensor's name is used.
        process_set: the ranks that take part.
        ignore_name_scope: name the operation after the tensor without its name scopes.
        priority: higher is more urgent.

    Returns:
        A tensor of the same shape and dtype, or tf.IndexedSlices.

    Raises:
        ValueError: an argument is invalid, or hvd.init() was not called.
        tf.errors.FailedPreconditionError: the ranks' calls do not match; raised on all of them.
        tf.errors.UnknownError: a rank failed.
    """
    if isinstance(tensor, tf.IndexedSlices):
        resolved = resolve_op(op, average)
        with tf.device(device_sparse or None):
            scale = prescale_factor * postscale_factor
            return _allreduce_slices(tensor, resolved, scale, name, process_set, priority)
    [result] = grouped_allreduce(
        [tensor],
        average,
        device_dense,
        device_sparse,
        compression,
        op,
        prescale_factor,
        postscale_factor,
        name,
        process_set,
        ignore_name_scope,
        priority,
    )
    return result


def _allreduce_slices(
    slices: tf.IndexedSlices,
    op: int,
    scale: float,
    name: str | None,
    process_set: ProcessSet,
    priority: int,
) -> tf.IndexedSlices:
    if op not in (Average, Sum):
        raise UnsupportedError("tf.IndexedSlices can only be reduced by op=Average or op=Sum")
    base = operation_name("allreduce_slices", name, slices.values)
    gathered = collectives.allgather(
        [slices.values, slices.indices], Call(base, process_set, priority)
    )
    values = gathered[0]
    if op == Average:
        scale /= len(members_of(process_set))
        if values.dtype.is_integer:  # as in Horovod: true division, in TensorFlow's type for it
            values = tf.cast(values, tf.float32 if values.dtype.size < 4 else tf.float64)
    return tf.IndexedSlices(_scaled(values, scale), gathered[1], dense_shape=slices.dense_shape)


def _scaled(values: tf.Tensor, factor: float) -> tf.Tensor:
    """Multiply. Integers are converted back."""
    if factor == 1.0:
        return values
    if values.dtype.is_integer:
        return tf.cast(tf.cast(values, tf.float64) * factor, values.dtype)
    return values * tf.cast(factor, values.dtype)


def grouped_allreduce(
    tensors: Tensors,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompressor = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    priority: int = 0,
) -> list[Any]:
    """Run allreduce() on several tensors, all or none. They may differ in shape and dtype.

    Returns:
        The list of results. Any tf.IndexedSlices are reduced one by one.
    """
    given = _group(tensors)
    encoding, compression = divide(compression)
    reduction = Reduction(resolve_op(op, average), prescale_factor, postscale_factor, encoding)
    results: list[Any] = [None] * len(given)
    dense = [i for i, one in enumerate(given) if not isinstance(one, tf.IndexedSlices)]
    for i, one in enumerate(given):
        if isinstance(one, tf.IndexedSlices):
            own_name = None if name is None else f"{name}.{i}"
            with tf.device(device_sparse or None):
                scale = prescale_factor * postscale_factor
                results[i] = _allreduce_slices(
                    one, reduction.op, scale, own_name, process_set, priority
                )
    if dense:
        with tf.device(device_dense or None):
            compressed = [compression.compress(as_tensor(given[i])) for i in dense]
            sent = [tensor for tensor, _ in compressed]
            own_name = operation_name("allreduce", name, sent[0], ignore_name_scope)
            reduced = collectives.allreduce(sent, reduction, Call(own_name, process_set, priority))
            for i, result, (_, context) in zip(dense, reduced, compressed, strict=True):
                results[i] = compression.decompress(result, context)
    return results


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Concatenate the ranks' tensors along the first dimension, on every rank. Differentiable.

    The gradient of this rank's rows is the average over the ranks of their gradients for these
    rows.

    Args:
        tensor: must have the same dtype and shape on all ranks, except for the first dimension,
            which may differ and may be 0. Not 0-d.
        name: as for allreduce().
        ignore_name_scope: as for allreduce().
        process_set: the ranks that take part.

    Returns:
        A new tensor with the rows of rank 0, rank 1, and so on.

    Raises:
        ValueError, tf.errors.OpError: as in allreduce().
    """
    return grouped_allgather([tensor], name, ignore_name_scope, process_set)[0]


def grouped_allgather(
    tensors: Tensors,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Run allgather() on several tensors, all or none. Returns the list of results."""
    given = [as_tensor(one) for one in _group(tensors)]
    own_name = operation_name("allgather", name, given[0], ignore_name_scope)
    return collectives.allgather(given, Call(own_name, process_set))


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Send the root's tensor to all ranks. Differentiable.

    The gradient on the root is the average of the ranks' gradients. On other ranks it is zero.

    Args:
        tensor: must have the same shape and dtype on all ranks. Only the root's values are read.
        root_rank: the global rank of the sender.
        name: as for allreduce().
        ignore_name_scope: as for allreduce().
        process_set: the ranks that take part.

    Returns:
        A new tensor with the root's values.

    Raises:
        ValueError, tf.errors.OpError: as in allreduce().
    """
    given = as_tensor(tensor)
    own_name = operation_name("broadcast", name, given, ignore_name_scope)
    return collectives.broadcast([given], root_rank, Call(own_name, process_set))[0]


def broadcast_(
    variables: Iterable[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Broadcast the root's values of variables in one operation, and return the variables.

    In a TensorFlow 1 graph, return the assignments, which the session must run.
    """
    targets = list(variables)
    if not targets:
        return []
    values = [as_tensor(variable) for variable in targets]
    own_name = operation_name("broadcast", name, values[0])
    results = collectives.broadcast(values, root_rank, Call(own_name, process_set))
    assigned = [variable.assign(value) for variable, value in zip(targets, results, strict=True)]
    in_session = not tf.executing_eagerly() and not tf.inside_function()
    return assigned if in_session else targets


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send some rows of a tensor to each rank and receive rows from each. Differentiable.

    Args:
        tensor: the rows for rank 0, rank 1, and so on.
        splits: a vector of integers, the number of rows for each rank. Rows beyond their sum are
            not sent. None: the rows are divided evenly.
        name: as for allreduce().
        ignore_name_scope: as for allreduce().
        process_set: the ranks that take part.

    Returns:
        The rows from rank 0, rank 1, and so on. With `splits`, also the number of rows from each.

    Raises:
        ValueError, tf.errors.OpError: as in allreduce().
    """
    given = as_tensor(tensor)
    own_name = operation_name("alltoall", name, given, ignore_name_scope)
    result, received = collectives.alltoall(given, splits, Call(own_name, process_set))
    return result if splits is None else (result, received)


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: AnyCompressor = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    splits: Sequence[int] | None = None,
) -> tf.Tensor:
    """Reduce a tensor over the ranks and scatter the rows of the result. Differentiable.

    Args:
        tensor: must have the same shape and dtype on all ranks. Not 0-d.
        device_dense: the device of the operation.
        compression: as for allreduce().
        op: as for allreduce(). Average and Sum have gradients.
        name: as for allreduce().
        process_set: the ranks that take part.
        prescale_factor: factor applied to each rank's tensor before the reduction.
        postscale_factor: factor applied to the result.
        splits: integers, the number of rows for each rank. Must be the same on all ranks and add up
            to the number of rows. None: the rows are divided evenly, and the lower ranks get the
            remainder, one row each.

    Returns:
        This rank's rows.

    Raises:
        ValueError, tf.errors.OpError: as in allreduce().
    """
    return grouped_reducescatter(
        [tensor],
        device_dense,
        compression,
        op,
        name,
        process_set,
        prescale_factor,
        postscale_factor,
        splits,
    )[0]


def grouped_reducescatter(
    tensors: Tensors,
    device_dense: str = "",
    compression: AnyCompressor = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    splits: Sequence[int] | None = None,
) -> list[tf.Tensor]:
    """Run reducescatter() on several tensors, all or none. Returns the list of results."""
    resolved = resolve_op(op, allowed=ELEMENTWISE)
    encoding, compression = divide(compression)
    reduction = Reduction(resolved, prescale_factor, postscale_factor, encoding)
    with tf.device(device_dense or None):
        compressed = [compression.compress(as_tensor(one)) for one in _group(tensors)]
        sent = [tensor for tensor, _ in compressed]
        own_name = operation_name("reducescatter", name, sent[0])
        call = Call(own_name, process_set)
        results = collectives.reducescatter(sent, reduction, call, splits)
        return [
            compression.decompress(result, context)
            for result, (_, context) in zip(results, compressed, strict=True)
        ]


def reduce(
    tensor: Any,
    root_rank: int,
    op: int | None = None,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> tf.Tensor:
    """Reduce a tensor over the ranks; the root gets the result. Average and Sum have gradients.

    The gradient on every rank is that of the root, divided by the number of ranks for Average.

    Args:
        tensor: must have the same shape and dtype on all ranks.
        root_rank: the global rank that gets the result.
        op: as for allreduce(); Average by default.
        name: as for allreduce().
        prescale_factor: factor applied to each rank's tensor before the reduction.
        postscale_factor: factor applied to the result.
        process_set: the ranks that take part.
        priority: higher is more urgent.

    Returns:
        On the root, a tensor with the same values as from allreduce(); on other ranks, a tensor of
        shape (0,).

    Raises:
        ValueError, tf.errors.OpError: as in allreduce().
    """
    given = as_tensor(tensor)
    reduction = Reduction(resolve_op(op, allowed=ELEMENTWISE), prescale_factor, postscale_factor)
    call = Call(operation_name("reduce", name, given), process_set, priority)
    return collectives.reduce([given], root_rank, reduction, call)[0]


def gather(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Concatenate the ranks' tensors along the first dimension, on the root. Differentiable.

    The gradient of this rank's rows is that of the root for these rows.

    Args:
        tensor: must have the same dtype and shape on all ranks, except for the first dimension,
            which may differ and may be 0. Not 0-d.
        root_rank: the global rank that gets the result.
        name: as for allreduce().
        process_set: the ranks that take part.

    Returns:
        On the root, the rows of rank 0, rank 1, and so on; on other ranks, a tensor without rows.

    Raises:
        ValueError, tf.errors.OpError: as in allreduce().
    """
    given = as_tensor(tensor)
    call = Call(operation_name("gather", name, given), process_set)
    return collectives.gather(given, root_rank, call)


def scatter(
    tensor: Any,
    root_rank: int,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Distribute the rows of the root's tensor to the ranks, in order. Differentiable.

    The gradient of the root's rows comes from the ranks that received them. On other ranks it is
    zero.

    Args:
        tensor: must have the same dtype and shape on all ranks, except for the first dimension. On
            ranks other than the root its rows are ignored, and there may be none. Not 0-d.
        root_rank: the global rank of the sender.
        splits: a vector of integers, the number of rows for each rank, read on the root only. Rows
            beyond their sum are not sent. None: the rows are divided evenly, and the lower ranks
            get the remainder, one row each.
        name: as for allreduce().
        process_set: the ranks that take part.

    Returns:
        This rank's rows.

    Raises:
        ValueError, tf.errors.OpError: as in allreduce().
    """
    given = as_tensor(tensor)
    call = Call(operation_name("scatter", name, given), process_set)
    return collectives.scatter(given, root_rank, splits, call)


def join() -> tf.Tensor:
    """Signal that this rank has no more data, and wait until every rank has joined.

    Until then, the other ranks reduce without this rank. Average still divides by the number of all
    ranks (see JOIN_AVERAGE in docs/configuration.md). In a tf.function it runs in program order
    among ops with side effects. Add control dependencies on the collectives that must precede it.

    Returns:
        The rank that joined last, an int32 scalar.
    """
    return loader.op("Join")(**Call("", global_process_set).attributes())


def _group(tensors: Any) -> list[Any]:
    if isinstance(tensors, tf.Tensor | tf.Variable | tf.IndexedSlices):
        raise ValueError("a grouped operation takes a list of tensors, not one tensor")
    group = list(tensors)
    if not group:
        raise ValueError("a grouped operation needs at least one tensor")
    return group
