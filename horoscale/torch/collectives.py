"""The collectives on lists of tensors: how each one starts, completes and is differentiated.

Every function starts one operation on all of its tensors or on none, and returns its handle. Each
gradient is also a collective. It runs on the same process set, under a name derived from that of
the operation.

Gradients are scaled as in Horovod: a tensor that is equal on all ranks counts as one tensor, not as
one per rank. The gradients of allgather and broadcast therefore average over the ranks' copies of
the result. The gradient of reducescatter is an average, times the number of ranks for Sum. The
result of reduce and gather exists only on the root; its gradient is sent back unscaled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from horoscale import _core
from horoscale._core import Encoding, OpKind, ReduceOp, TensorArg, UnsupportedError
from horoscale.common.arguments import (
    check_all_split,
    check_even_split,
    check_group_out,
    check_has_rows,
    check_out,
    check_reduction,
    check_root,
    check_splits,
    members_of,
    scattered_rows,
    set_id,
    titled,
)
from horoscale.common.job import current_runtime
from horoscale.common.process_sets import ProcessSet
from horoscale.torch.autograd import Gradient, connect, needs_gradient
from horoscale.torch.compiling import outside_graph
from horoscale.torch.handles import Handle
from horoscale.torch.tensors import (
    adopt,
    adopt_on_device,
    argument,
    data_type,
    device_of,
    gathered_argument,
    in_memory,
    need_room,
    room_for,
    write_back,
)

Tensors = Sequence[torch.Tensor]


class Call(NamedTuple):
    """The arguments that all collectives have besides tensors and reduction options."""

    name: str | None
    process_set: ProcessSet
    will_wait: bool = False  # the caller waits immediately
    priority: int = 0

    def backward(self, suffix: str = "grad") -> Call:
        """Return the call of the operation that computes the gradient."""
        name = None if self.name is None else f"{self.name}.{suffix}"
        return Call(name, self.process_set, will_wait=True, priority=self.priority)


class Reduction(NamedTuple):
    """The reduction options of allreduce, reducescatter and reduce."""

    op: ReduceOp
    prescale: float = 1.0
    postscale: float = 1.0
    encoding: Encoding = Encoding.NONE  # of the data between hosts

    def check(self, tensors: Tensors) -> None:
        """Raise UnsupportedError if the operator is not defined for a tensor's dtype."""
        for tensor in tensors:
            check_reduction(data_type(tensor.dtype), self.op)

    def check_differentiable(self) -> None:
        """Raise UnsupportedError if the operator has no gradient."""
        if self.op not in (ReduceOp.SUM, ReduceOp.AVERAGE):
            raise UnsupportedError(f"op={self.op.label} has no gradient")


def _start(
    kind: OpKind,
    call: Call,
    sources: Tensors,
    targets: Sequence[torch.Tensor | None] | None,
    complete: Callable[[_core.Handle], Any],
    describe: Callable[..., TensorArg] = argument,
    **request: Any,
) -> Handle:
    outputs = [None] * len(sources) if targets is None else targets
    device = device_of(sources)
    operation = current_runtime().enqueue(
        kind,
        tensors=[describe(*pair) for pair in zip(sources, outputs, strict=True)],
        name=call.name,
        process_set=set_id(call.process_set),
        will_wait=call.will_wait,
        priority=call.priority,
        keep_alive=(sources, targets),
        device=device,
        **request,
    )
    return Handle(operation, complete, None if device is None else device.cuda_device)


def _output(
    operation: _core.Handle,
    index: int,
    like: torch.Tensor,
    rows: int,
    out: torch.Tensor | None = None,
    title: str = "",
) -> torch.Tensor:
    shape = (rows, *like.shape[1:])
    if like.is_cpu:
        if out is not None:  # the operation has already written to it
            return write_back(out, out)
        return adopt(operation.output(index), like.dtype, shape)
    result = adopt_on_device(operation.device_output(index), like.device, like.dtype, shape)
    if out is None:
        return result
    check_out(out.shape, rows, like.shape[1:], title)
    return write_back(out, result)


def _room_given(
    tensors: Tensors,
    rows: Sequence[int | None],
    sources: Tensors,
    out: Tensors | None,
    title: str,
) -> list[torch.Tensor] | None:
    """Return `out`, or None if it is None. Raises ValueError if the results do not fit."""
    if out is None:
        return None
    check_group_out(sources, out)
    if needs_gradient(tensors):
        raise ValueError("out= is not differentiable: detach the input, or use torch.no_grad()")
    return [need_room(*one, title) for one in zip(out, rows, sources, strict=True)]


def _deliver(inputs: Tensors, in_place: bool, gradient: Gradient) -> Callable[[Tensors], Tensors]:
    """Return a function that turns computed tensors into the user's results."""
    if in_place:
        return lambda results: [write_back(*pair) for pair in zip(inputs, results, strict=True)]
    if needs_gradient(inputs):
        return lambda results: connect(results, inputs, gradient)
    return lambda results: results


@outside_graph
def allreduce(tensors: Tensors, reduction: Reduction, call: Call, in_place: bool = False) -> Handle:
    """Start an allreduce of each tensor. The outcome is the list of results."""
    sources = [in_memory(tensor) for tensor in tensors]
    reduction.check(sources)
    targets = sources if in_place else [room_for(one) for one in sources]
    deliver = _deliver(tensors, in_place, lambda g: allreduce_gradient(g, reduction, call))
    return _start(
        OpKind.ALLREDUCE,
        call,
        sources,
        targets,
        lambda _: deliver(targets),
        reduce_op=reduction.op,
        prescale=reduction.prescale,
        postscale=reduction.postscale,
        encoding=reduction.encoding,
    )


@outside_graph
def allreduce_gradient(gradients: Tensors, reduction: Reduction, call: Call) -> Tensors:
    """Return the gradients of an allreduce's inputs. Collective, like all gradient functions.

    `call` is that of the allreduce. Raises NotImplementedError if the operator has no gradient.
    """
    reduction.check_differentiable()
    result: Tensors = allreduce(gradients, reduction, call.backward()).wait()
    return result


@outside_graph
def broadcast(tensors: Tensors, root_rank: int, call: Call, in_place: bool = False) -> Handle:
    """Start broadcasting the root's tensors. The outcome is the list of results."""
    set_id(call.process_set)  # first, because its error is clearer if the set is invalid
    root = check_root(root_rank, call.process_set)
    sources = [in_memory(tensor) for tensor in tensors]
    targets = sources if in_place else [room_for(one) for one in sources]
    deliver = _deliver(tensors, in_place, lambda g: broadcast_gradient(g, root, call))
    return _start(OpKind.BROADCAST, call, sources, targets, lambda _: deliver(targets), root=root)


@outside_graph
def broadcast_gradient(gradients: Tensors, root: int, call: Call) -> Tensors:
    """Return the gradients of a broadcast's inputs. They are zeros except on the root."""
    reduced: Tensors = allreduce(gradients, Reduction(ReduceOp.AVERAGE), call.backward()).wait()
    is_root = current_runtime().topology.rank == root
    return reduced if is_root else [torch.zeros_like(one) for one in reduced]


@outside_graph
def allgather(tensors: Tensors, call: Call, out: Tensors | None = None) -> Handle:
    """Start concatenating each tensor's rows over the ranks. The outcome is the list of results.

    The results are written to `out`, or to new tensors if it is None.
    """
    return allgather_with_rows(tensors, call, out).then(lambda outcome: outcome[0])


@outside_graph
def allgather_with_rows(tensors: Tensors, call: Call, out: Tensors | None = None) -> Handle:
    """Run allgather(). The outcome is (results, the row counts of all members for each tensor)."""
    title = titled("allgather", call.name, set_id(call.process_set))
    members = len(members_of(call.process_set))
    sources = [in_memory(tensor) for tensor in tensors]
    for source in sources:
        check_has_rows(source.shape, "allgather")
    given: Sequence[torch.Tensor | None] = [None] * len(sources)
    given = _room_given(tensors, [None] * len(sources), sources, out, title) or given
    rows_of_members: list[list[int]] = []  # by tensor; known when the operation has completed
    deliver = _deliver(tensors, False, lambda g: allgather_gradient(g, rows_of_members, call))

    def complete(operation: _core.Handle) -> tuple[Tensors, list[list[int]]]:
        results = []
        for i, source in enumerate(sources):
            rows = operation.output_rows(i, members)
            rows_of_members.append(rows)
            results.append(_output(operation, i, source, sum(rows), given[i], title))
        return deliver(results), rows_of_members

    return _start(OpKind.ALLGATHER, call, sources, given, complete, describe=gathered_argument)


@outside_graph
def allgather_gradient(
    gradients: Tensors, rows_of_members: Sequence[Sequence[int]], call: Call
) -> Tensors:
    """Return the gradients of an allgather's inputs: this rank's rows of the average."""

    def as_scattered(rows: Sequence[int]) -> bool:
        each, rest = divmod(sum(rows), len(rows))
        return list(rows) == [each + (i < rest) for i in range(len(rows))]

    # All ranks know all row counts, so they make the same decision.
    if all(as_scattered(rows) for rows in rows_of_members):
        average = Reduction(ReduceOp.AVERAGE)
        result: Tensors = reducescatter(gradients, average, call.backward()).wait()
        return result
    averages = []
    for i, (tensor, rows) in enumerate(zip(gradients, rows_of_members, strict=True)):
        parts, _ = alltoall(tensor, rows, call.backward(f"grad.{i}")).wait()
        by_rank = parts.view(len(rows), parts.shape[0] // len(rows), *parts.shape[1:])
        averages.append(by_rank.mean(0))
    return averages


@outside_graph
def alltoall(
    tensor: torch.Tensor,
    splits: Sequence[int] | None,
    call: Call,
    out: torch.Tensor | None = None,
) -> Handle:
    """Start sending rows to each rank. The outcome is (result, row counts from each rank)."""
    title = titled("alltoall", call.name, set_id(call.process_set))
    members = len(members_of(call.process_set))
    source = in_memory(tensor)
    check_has_rows(source.shape, "alltoall")
    if splits is None:
        check_even_split(source.shape[0], call.process_set)
        splits = [source.shape[0] // members] * members
    splits = check_splits(splits, source.shape[0], call.process_set)
    rows = source.shape[0]
    source = source[: sum(splits)]
    if out is not None:
        _room_given([tensor], [None], [source], [out], title)
    received: list[int] = []  # known when the operation has completed
    deliver = _deliver([tensor], False, lambda g: [alltoall_gradient(g[0], received, rows, call)])

    def complete(operation: _core.Handle) -> tuple[torch.Tensor, list[int]]:
        received.extend(operation.output_rows(0, members))
        (result,) = deliver([_output(operation, 0, source, sum(received), out, title)])
        return result, received

    return _start(
        OpKind.ALLTOALL,
        call,
        [source],
        [out],
        complete,
        describe=gathered_argument,
        splits=splits,
    )


@outside_graph
def alltoall_gradient(
    gradient: torch.Tensor, received: Sequence[int], rows: int, call: Call
) -> torch.Tensor:
    """Return the gradient of an alltoall's input of `rows` rows, which may include unsent rows."""
    result, _ = alltoall(gradient, received, call.backward()).wait()
    return torch.cat([result, result.new_zeros((rows - result.shape[0], *result.shape[1:]))])


@outside_graph
def reducescatter(
    tensors: Tensors,
    reduction: Reduction,
    call: Call,
    splits: Sequence[int] | None = None,
    out: Tensors | None = None,
) -> Handle:
    """Start reducing each tensor and scattering its rows. The outcome is the list of own rows.

    The results are written to `out`, or to new tensors if it is None.
    """
    title = titled("reducescatter", call.name, set_id(call.process_set))
    sources = [in_memory(tensor) for tensor in tensors]
    reduction.check(sources)
    rows = []
    for source in sources:
        check_has_rows(source.shape, "reducescatter")
        if splits is not None:
            splits = check_all_split(splits, source.shape[0], call.process_set)
        rows.append(scattered_rows(source.shape[0], call.process_set, splits))
    targets = _room_given(tensors, rows, sources, out, title)
    if targets is None:
        shapes = [(own, *source.shape[1:]) for own, source in zip(rows, sources, strict=True)]
        targets = [source.new_empty(shape) for source, shape in zip(sources, shapes, strict=True)]
        deliver = _deliver(tensors, False, lambda g: reducescatter_gradient(g, reduction, call))
    else:
        deliver = _deliver(targets, True, lambda g: g)
    return _start(
        OpKind.REDUCESCATTER,
        call,
        sources,
        targets,
        lambda _: deliver(targets),
        reduce_op=reduction.op,
        prescale=reduction.prescale,
        postscale=reduction.postscale,
        encoding=reduction.encoding,
        splits=splits,
    )


@outside_graph
def reducescatter_gradient(gradients: Tensors, reduction: Reduction, call: Call) -> Tensors:
    """Return the gradients of a reducescatter's inputs: the gathered and scaled gradients."""
    factor = reduction.prescale * reduction.postscale
    if reduction.op is ReduceOp.SUM:
        factor *= len(members_of(call.process_set))
    scaled = [one * factor for one in gradients]
    result: Tensors = allgather(scaled, call.backward()).wait()
    return result


def _is_root(root: int) -> bool:
    return current_runtime().topology.rank == root


@outside_graph
def reduce(
    tensor: torch.Tensor, root_rank: int, reduction: Reduction, call: Call, in_place: bool = False
) -> Handle:
    """Start reducing a tensor to the root. The outcome on the root is the result.

    On other ranks the outcome is None or, if autograd records the operation, an empty tensor.
    """
    set_id(call.process_set)
    root = check_root(root_rank, call.process_set)
    source = in_memory(tensor)
    reduction.check([source])
    shape = source.shape
    targets = None
    if _is_root(root):
        targets = [source] if in_place else [room_for(source)]
    deliver = _deliver(
        [tensor], in_place, lambda g: [reduce_gradient(g[0], shape, root, reduction, call)]
    )
    records = needs_gradient([tensor]) and not in_place

    def complete(_: _core.Handle) -> torch.Tensor | None:
        if targets is not None:
            return deliver(targets)[0]
        return deliver([source.new_empty(0)])[0] if records else None

    return _start(
        OpKind.REDUCE,
        call,
        [source],
        targets,
        complete,
        root=root,
        reduce_op=reduction.op,
        prescale=reduction.prescale,
        postscale=reduction.postscale,
    )


@outside_graph
def reduce_gradient(
    gradient: torch.Tensor, shape: torch.Size, root: int, reduction: Reduction, call: Call
) -> torch.Tensor:
    """Return the gradient of a reduce's input: the scaled gradient of the root."""
    reduction.check_differentiable()
    factor = reduction.prescale * reduction.postscale
    if reduction.op is ReduceOp.AVERAGE:
        factor /= len(members_of(call.process_set))
    sent = gradient if _is_root(root) else gradient.new_empty(shape)
    [result] = broadcast([sent], root, call.backward()).wait()
    return result * factor  # type: ignore[no-any-return]


@outside_graph
def gather(tensor: torch.Tensor, root_rank: int, call: Call) -> Handle:
    """Start concatenating the ranks' rows on the root. The outcome is as for reduce()."""
    set_id(call.process_set)
    root = check_root(root_rank, call.process_set)
    members = len(members_of(call.process_set))
    source = in_memory(tensor)
    check_has_rows(source.shape, "gather")
    rows: list[int] = []  # of each member; known on the root when the operation has completed
    deliver = _deliver([tensor], False, lambda g: [gather_gradient(g[0], rows, root, call)])
    records = needs_gradient([tensor])

    def complete(operation: _core.Handle) -> torch.Tensor | None:
        if not _is_root(root):
            return deliver([source.new_empty((0, *source.shape[1:]))])[0] if records else None
        rows.extend(operation.output_rows(0, members))
        return deliver([_output(operation, 0, source, sum(rows))])[0]

    return _start(OpKind.GATHER, call, [source], None, complete, root=root)


@outside_graph
def gather_gradient(
    gradient: torch.Tensor, rows: Sequence[int], root: int, call: Call
) -> torch.Tensor:
    """Return the gradient of a gather's input: this rank's rows of the root's gradient."""
    result: torch.Tensor = scatter(gradient, root, rows, call.backward()).wait()
    return result


@outside_graph
def scatter(
    tensor: torch.Tensor, root_rank: int, splits: Sequence[int] | None, call: Call
) -> Handle:
    """Start scattering the root's rows. The outcome is this rank's rows."""
    set_id(call.process_set)
    root = check_root(root_rank, call.process_set)
    members = len(members_of(call.process_set))
    source = in_memory(tensor)
    check_has_rows(source.shape, "scatter")
    shape = source.shape
    if not _is_root(root):
        source, splits = source[:0], None  # only the shape of a row matters
    elif splits is not None:
        splits = check_splits(splits, source.shape[0], call.process_set)
    deliver = _deliver([tensor], False, lambda g: [scatter_gradient(g[0], shape, root, call)])

    def complete(operation: _core.Handle) -> torch.Tensor:
        rows = sum(operation.output_rows(0, members))
        return deliver([_output(operation, 0, source, rows)])[0]

    return _start(OpKind.SCATTER, call, [source], None, complete, root=root, splits=splits)


@outside_graph
def scatter_gradient(
    gradient: torch.Tensor, shape: torch.Size, root: int, call: Call
) -> torch.Tensor:
    """Return the gradient of a scatter's input: zeros except for the rows that the root sent."""
    gathered = gather(gradient, root, call.backward()).wait()
    if gathered is None:
        return gradient.new_zeros(shape)
    rest = gathered.new_zeros((shape[0] - gathered.shape[0], *shape[1:]))
    return torch.cat([gathered, rest])
