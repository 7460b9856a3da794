"""The collectives on lists of tensors as ops, and their gradients.

All functions work in eager mode and in graphs. Every function starts one operation on all of its
tensors or on none. All ops of a graph may be pending at the same time.

Gradients are scaled as in Horovod: a tensor that is equal on all ranks counts as one tensor, not as
one per rank. The gradients of allgather and broadcast therefore average over the ranks' copies of
the result. The gradient of reducescatter is an average, times the number of ranks for Sum. The
result of reduce and gather exists only on the root; its gradient is sent back unscaled.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import control_flow_util

from horoscale._core import DataType, Encoding, ReduceOp, UnsupportedError
from horoscale.common.arguments import (
    SUMS,
    check_all_split,
    check_has_rows,
    check_reduction,
    check_root,
    check_splits,
    members_of,
    scattered_rows,
    set_id,
)
from horoscale.common.job import current_runtime
from horoscale.common.process_sets import ProcessSet
from horoscale.tensorflow import loader
from horoscale.tensorflow.errors import DuplicateNameError, InvalidArgumentError
from horoscale.tensorflow.naming import gradient_name

Gradient = TypeVar("Gradient", bound=Callable[..., Any])

_DATA_TYPES = {
    tf.uint8: DataType.UINT8,
    tf.int8: DataType.INT8,
    tf.uint16: DataType.UINT16,
    tf.int16: DataType.INT16,
    tf.int32: DataType.INT32,
    tf.int64: DataType.INT64,
    tf.float16: DataType.FLOAT16,
    tf.bfloat16: DataType.BFLOAT16,
    tf.float32: DataType.FLOAT32,
    tf.float64: DataType.FLOAT64,
    tf.bool: DataType.BOOL,
    tf.complex64: DataType.COMPLEX64,
    tf.complex128: DataType.COMPLEX128,
}
# Operations that only move data may use another type of the same size.
_SAME_BITS = {tf.uint32: tf.int32, tf.uint64: tf.int64}


class Call(NamedTuple):
    """The arguments that all collectives have besides tensors and reduction options."""

    name: str
    process_set: ProcessSet
    priority: int = 0

    def attributes(self) -> dict[str, Any]:
        """Return the attributes that all ops have.

        Raises InvalidArgumentError, which is also a ValueError, if the set cannot be used.
        """
        try:
            process_set = set_id(self.process_set)
        except ValueError as error:
            raise InvalidArgumentError(None, None, str(error)) from None
        return {
            "process_set": process_set,
            "tensor_name": self.name,
            "priority": self.priority,
        }


class Reduction(NamedTuple):
    """The reduction options of allreduce, reducescatter and reduce."""

    op: ReduceOp
    prescale: float = 1.0
    postscale: float = 1.0
    encoding: Encoding = Encoding.NONE  # of the data between hosts

    def attributes(self) -> dict[str, Any]:
        """Return the attributes of the op."""
        return {
            "reduce_op": int(self.op),
            "prescale_bits": _bits_of(self.prescale),
            "postscale_bits": _bits_of(self.postscale),
            "encoding": int(self.encoding),
        }

    def check(self, tensors: Sequence[tf.Tensor]) -> None:
        """Raise UnsupportedError if the operator is not defined for one of the tensors."""
        for tensor in tensors:
            check_reduction(data_type(tensor.dtype), self.op)
            if self.encoding.is_lossy and self.op not in SUMS and tensor.dtype.is_floating:
                raise UnsupportedError(
                    f"lossy compression is not possible with op={self.op.label}, only with "
                    "op=Average or op=Sum"
                )


def data_type(dtype: tf.DType) -> DataType:
    """Return the runtime's data type for a dtype. Raises UnsupportedError if there is none."""
    if dtype not in _DATA_TYPES:
        raise UnsupportedError(f"tensors of {dtype} are not supported")
    return _DATA_TYPES[dtype]


def as_tensor(value: Any) -> tf.Tensor:
    """Return a tensor, variable or array as a tensor."""
    return tf.convert_to_tensor(value)


def allreduce(tensors: Sequence[tf.Tensor], reduction: Reduction, call: Call) -> list[tf.Tensor]:
    """Reduce each tensor over the ranks."""
    reduction.check(tensors)
    results: list[tf.Tensor] = run(
        "Allreduce", tensors=tensors, **reduction.attributes(), **call.attributes()
    )
    return results


def broadcast(tensors: Sequence[tf.Tensor], root_rank: int, call: Call) -> list[tf.Tensor]:
    """Broadcast the root's tensors."""
    attributes = call.attributes()
    root = check_root(root_rank, call.process_set)
    sent = [movable(tensor) for tensor in tensors]
    results = run("Broadcast", tensors=sent, root_rank=root, **attributes)
    return [as_it_was(*pair) for pair in zip(results, tensors, strict=True)]


def allgather(tensors: Sequence[tf.Tensor], call: Call) -> list[tf.Tensor]:
    """Concatenate each tensor's rows over the ranks."""
    attributes = call.attributes()
    for tensor in tensors:
        _check_rows(tensor, "allgather")
    results, _ = run("Allgather", tensors=[movable(tensor) for tensor in tensors], **attributes)
    return [as_it_was(*pair) for pair in zip(results, tensors, strict=True)]


def alltoall(tensor: tf.Tensor, splits: Any, call: Call) -> tuple[tf.Tensor, tf.Tensor]:
    """Send rows to each rank. Return the result and the number of rows received from each rank."""
    attributes = call.attributes()
    _check_rows(tensor, "alltoall")
    if splits is None:
        splits = tf.zeros([0], tf.int32)
    else:
        splits = _splits(splits, tensor, call.process_set)
    result, received = run("Alltoall", tensor=movable(tensor), splits=splits, **attributes)
    received = tf.ensure_shape(received, [len(members_of(call.process_set))])
    return as_it_was(result, tensor), received


def reducescatter(
    tensors: Sequence[tf.Tensor],
    reduction: Reduction,
    call: Call,
    splits: Sequence[int] | None = None,
) -> list[tf.Tensor]:
    """Reduce each tensor and scatter the rows."""
    attributes = call.attributes()
    for tensor in tensors:
        _check_rows(tensor, "reducescatter")
        if splits is not None:
            rows = tensor.shape[0] if tensor.shape.rank else None
            splits = check_all_split(
                splits, sum(splits) if rows is None else rows, call.process_set
            )
    reduction.check(tensors)
    results: list[tf.Tensor] = run(
        "Reducescatter",
        tensors=tensors,
        splits=splits or [],
        **reduction.attributes(),
        **attributes,
    )
    for result, tensor in zip(results, tensors, strict=True):
        if not tf.executing_eagerly() and tensor.shape.rank and tensor.shape[0] is not None:
            rows = scattered_rows(tensor.shape[0], call.process_set, splits)
            result.set_shape([rows, *tensor.shape[1:]])
    return results


def reduce(
    tensors: Sequence[tf.Tensor], root_rank: int, reduction: Reduction, call: Call
) -> list[tf.Tensor]:
    """Reduce each tensor to the root. On other ranks the results are empty."""
    attributes = call.attributes()
    root = check_root(root_rank, call.process_set)
    reduction.check(tensors)
    results: list[tf.Tensor] = run(
        "Reduce", tensors=tensors, root_rank=root, **reduction.attributes(), **attributes
    )
    if not tf.executing_eagerly():
        for result, tensor in zip(results, tensors, strict=True):
            result.set_shape(tensor.shape if _is_root(root) else [0])
    return results


def gather(tensor: tf.Tensor, root_rank: int, call: Call) -> tf.Tensor:
    """Concatenate the ranks' rows on the root. On other ranks the result has no rows."""
    attributes = call.attributes()
    root = check_root(root_rank, call.process_set)
    _check_rows(tensor, "gather")
    result, _ = run("Gather", tensor=movable(tensor), root_rank=root, **attributes)
    return as_it_was(result, tensor)


def scatter(tensor: tf.Tensor, root_rank: int, splits: Any, call: Call) -> tf.Tensor:
    """Scatter the root's rows. Other ranks' rows are ignored."""
    attributes = call.attributes()
    root = check_root(root_rank, call.process_set)
    _check_rows(tensor, "scatter")
    if splits is None or not _is_root(root):
        splits = tf.zeros([0], tf.int32)
    else:
        splits = _splits(splits, tensor, call.process_set)
    result = run("Scatter", tensor=movable(tensor), splits=splits, root_rank=root, **attributes)
    return as_it_was(result, tensor)


def _is_root(root: int) -> bool:
    return current_runtime().topology.rank == root


def run(name: str, **arguments: Any) -> Any:
    """Call an op. In a function it runs even if its result is unused, because ranks may differ.

    In the body of a loop, each iteration also completes before the next one starts. The iterations
    share one name, which ranks might otherwise match in different orders.
    """
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    if graph is not None and control_flow_util.GraphOrParentsInXlaContext(graph):
        message = f"XLA cannot compile horoscale's {name.lower()}: use jit_compile=False"
        raise tf.errors.InvalidArgumentError(None, None, message)
    try:
        results = loader.op(name)(**arguments)
    except tf.errors.InvalidArgumentError as error:  # a kernel reports its failures as text only
        if "is pending on process set" not in error.message:
            raise
        raise DuplicateNameError(error.node_def, error.op, error.message) from None
    if isinstance(graph, FuncGraph) and not loader.runs_in_order(name):
        graph.control_outputs.append(tf.nest.flatten(results)[0].op)
    return results


def _check_rows(tensor: tf.Tensor, operation: str) -> None:
    if tensor.shape.rank is not None:
        check_has_rows(tensor.shape.as_list(), operation)


def _splits(splits: Any, tensor: tf.Tensor, process_set: ProcessSet) -> tf.Tensor:
    """Return splits as a tensor. Raises ValueError if they are known to be invalid."""
    splits = tf.convert_to_tensor(splits)
    if not splits.dtype.is_integer:
        raise ValueError(f"splits= takes integers, not {splits.dtype}")
    # A number beyond int32 becomes the largest one (negative beyond int64), which is rejected below
    # or by the kernel. Via int64, because TensorFlow cannot clamp all unsigned types.
    splits = tf.saturate_cast(tf.cast(splits, tf.int64), tf.int32)
    if splits.shape.rank not in (None, 1):
        raise ValueError(f"splits= takes a vector, not a tensor of shape {splits.shape}")
    if tf.executing_eagerly():
        check_splits(splits.numpy().tolist(), tensor.shape[0], process_set)
    return splits


def movable(tensor: tf.Tensor) -> tf.Tensor:
    """Return a tensor with the same bits in a type that the runtime supports, or raise."""
    if tensor.dtype in _SAME_BITS:
        return tf.bitcast(tensor, _SAME_BITS[tensor.dtype])
    data_type(tensor.dtype)
    return tensor


def as_it_was(result: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    """Convert the result for movable(tensor) back to the type of `tensor`."""
    return tf.bitcast(result, tensor.dtype) if tensor.dtype in _SAME_BITS else result


def _bits_of(value: float) -> int:
    bits: int = struct.unpack("q", struct.pack("d", value))[0]
    return bits


def _double_of(bits: int) -> float:
    value: float = struct.unpack("d", struct.pack("q", bits))[0]
    return value


# ---------------------------------------------------------------- gradients


def gradient_of(name: str) -> Callable[[Gradient], Gradient]:
    """Register a function as the gradient of an op, for each possible kernel library."""

    def register(gradient: Gradient) -> Gradient:
        for prefix in loader.PREFIXES:
            tf.RegisterGradient(prefix + name)(gradient)
        return gradient

    return register


def _backward(op: Any, suffix: str = "grad") -> Call:
    """Return the call of the operation that computes the gradient of `op`."""
    name = gradient_name(op.get_attr("tensor_name"), suffix)
    return Call(name, SetById(op.get_attr("process_set")), op.get_attr("priority"))


class SetById(ProcessSet):
    """The registered process set with the id in a graph's node."""

    def __init__(self, process_set_id: int) -> None:
        """Get the set's ranks from the runtime, in the set's order."""
        super().__init__(current_runtime().process_sets()[process_set_id], ordered=True)
        self.process_set_id = process_set_id


def _reduction_of(op: Any) -> Reduction:
    return Reduction(
        ReduceOp(op.get_attr("reduce_op")),
        _double_of(op.get_attr("prescale_bits")),
        _double_of(op.get_attr("postscale_bits")),
        Encoding(op.get_attr("encoding")),
    )


def _differentiable_reduction_of(op: Any) -> Reduction:
    reduction = _reduction_of(op)
    if reduction.op not in (ReduceOp.SUM, ReduceOp.AVERAGE):
        raise UnsupportedError(f"op={reduction.op.label} has no gradient")
    return reduction


def _on_given(gradients: Sequence[Any], compute: Any) -> list[Any]:
    """Apply a function of a list of tensors to the gradients that are not None."""
    given = [i for i, gradient in enumerate(gradients) if gradient is not None]
    results: list[Any] = [None] * len(gradients)
    if given:
        computed = compute([as_tensor(gradients[i]) for i in given])
        for i, result in zip(given, computed, strict=True):
            results[i] = result
    return results


@gradient_of("Allreduce")
def _allreduce_gradient(op: Any, *gradients: Any) -> list[Any]:
    reduction, call = _differentiable_reduction_of(op), _backward(op)
    return _on_given(gradients, lambda given: allreduce(given, reduction, call))


@gradient_of("Broadcast")
def _broadcast_gradient(op: Any, *gradients: Any) -> list[Any]:
    call = _backward(op)
    is_root = _is_root(op.get_attr("root_rank"))

    def compute(given: list[tf.Tensor]) -> list[tf.Tensor]:
        averages = allreduce(given, Reduction(ReduceOp.AVERAGE), call)
        if is_root:
            return averages
        with tf.control_dependencies(averages):  # otherwise pruned, and the root would hang
            return [tf.zeros_like(average) for average in averages]

    return _on_given(gradients, compute)


@gradient_of("Allgather")
def _allgather_gradient(op: Any, *gradients: Any) -> list[Any]:
    rows_of_members = tf.cast(op.outputs[-1], tf.int32)
    results: list[Any] = []
    for i, gradient in enumerate(gradients[:-1]):
        if gradient is None:
            results.append(None)
        else:
            call = _backward(op, f"grad.{i}")
            results.append(_own_rows_of_average(as_tensor(gradient), rows_of_members[i], call))
    return results


def _own_rows_of_average(gathered: tf.Tensor, rows: tf.Tensor, call: Call) -> tf.Tensor:
    """Average a tensor over the ranks. Return this rank's rows of the allgather's input."""
    members = len(members_of(call.process_set))
    parts, received = alltoall(gathered, rows, call)
    shape = tf.concat([[members], received[:1], tf.shape(parts)[1:]], 0)
    by_rank = tf.reshape(parts, shape)
    if by_rank.dtype in (tf.float16, tf.bfloat16):
        return tf.cast(tf.reduce_mean(tf.cast(by_rank, tf.float32), 0), by_rank.dtype)
    return tf.reduce_mean(by_rank, 0)


@gradient_of("Alltoall")
def _alltoall_gradient(op: Any, gradient: Any, _: Any) -> list[Any]:
    sent, _ = alltoall(as_tensor(gradient), op.outputs[1], _backward(op))
    shape = tf.shape(op.inputs[0])
    unsent = tf.concat([shape[:1] - tf.shape(sent)[:1], shape[1:]], 0)
    return [tf.concat([sent, tf.zeros(unsent, sent.dtype)], 0), None]


@gradient_of("Reducescatter")
def _reducescatter_gradient(op: Any, *gradients: Any) -> list[Any]:
    reduction, call = _differentiable_reduction_of(op), _backward(op)
    factor = reduction.prescale * reduction.postscale
    if reduction.op is ReduceOp.SUM:
        factor *= len(members_of(call.process_set))

    def compute(given: list[tf.Tensor]) -> list[tf.Tensor]:
        return allgather([one * tf.cast(factor, one.dtype) for one in given], call)

    return _on_given(gradients, compute)


@gradient_of("Reduce")
def _reduce_gradient(op: Any, *gradients: Any) -> list[Any]:
    reduction, call = _differentiable_reduction_of(op), _backward(op)
    root = op.get_attr("root_rank")
    factor = reduction.prescale * reduction.postscale
    if reduction.op is ReduceOp.AVERAGE:
        factor /= len(members_of(call.process_set))
    given = [i for i, gradient in enumerate(gradients) if gradient is not None]
    # On other ranks, only the type and shape matter.
    source = gradients if _is_root(root) else op.inputs
    results: list[Any] = [None] * len(gradients)
    if given:
        sent = broadcast([as_tensor(source[i]) for i in given], root, call)
        for i, one in zip(given, sent, strict=True):
            results[i] = one * tf.cast(factor, one.dtype)
    return results


@gradient_of("Gather")
def _gather_gradient(op: Any, gradient: Any, _: Any) -> Any:
    return scatter(as_tensor(gradient), op.get_attr("root_rank"), op.outputs[1], _backward(op))


@gradient_of("Scatter")
def _scatter_gradient(op: Any, gradient: Any) -> list[Any]:
    root = op.get_attr("root_rank")
    gathered = gather(as_tensor(gradient), root, _backward(op))
    if not _is_root(root):
        with tf.control_dependencies([gathered]):  # otherwise pruned, and the root would hang
            return [tf.zeros_like(op.inputs[0]), None]
    shape = tf.shape(op.inputs[0])
    unsent = tf.concat([shape[:1] - tf.shape(gathered)[:1], shape[1:]], 0)
    return [tf.concat([gathered, tf.zeros(unsent, gathered.dtype)], 0), None]
