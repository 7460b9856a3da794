"""The collectives of a process group: their description for the library and their completion.

Every function starts its operation. It returns the handles, the results and the completion as a
Started. Roots are global ranks here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from horoscale import _core
from horoscale._core import MismatchError, OpKind, ReduceOp, TensorArg, UnsupportedError
from horoscale.common.job import current_runtime
from horoscale.torch.distributed.operators import reduction
from horoscale.torch.distributed.places import (
    Room,
    Tensors,
    allocated,
    argument,
    flat,
    is_object,
    joined,
    write,
)
from horoscale.torch.tensors import device_of


class Place(NamedTuple):
    """The group in which an operation runs."""

    set_id: int
    size: int
    rank: int  # in the group
    will_wait: bool  # this thread waits next
    check_device: Callable[[torch.device], None]  # raises if the group does not support it


class Started(NamedTuple):
    """A started operation."""

    handle: _core.Handle
    results: list[torch.Tensor]
    finish: Callable[[], None] | None = None
    device: int | None = None  # a CUDA device


def _start(
    kind: OpKind,
    place: Place,
    sources: Tensors,
    tensors: Sequence[TensorArg],
    keep: object = None,
    **request: Any,
) -> tuple[_core.Handle, int | None]:
    """Start an operation on `sources`, described by `tensors`. Return its handle and device."""
    device = device_of(sources) if sources else None
    if device is not None:
        place.check_device(sources[0].device)
    handle = current_runtime().enqueue(
        kind,
        tensors=tensors,
        process_set=place.set_id,
        will_wait=place.will_wait,
        keep_alive=(sources, keep),
        device=device,
        **request,
    )
    return handle, None if device is None else device.cuda_device


def _written(tensors: Tensors, values: Tensors) -> Callable[[], None]:
    def finish() -> None:
        for tensor, value in zip(tensors, values, strict=True):
            write(tensor, value)

    return finish


def allreduce(place: Place, tensors: Tensors, op: Any) -> Started:
    """Reduce each tensor in place, all or none of them."""
    values = [flat(tensor) for tensor in tensors]
    how = [reduction(op, value.dtype) for value in values]
    handle, device = _start(
        OpKind.ALLREDUCE,
        place,
        values,
        [argument(value, value) for value in values],
        reduce_op=how[0].op,
        prescale=how[0].prescale,
    )
    return Started(handle, list(tensors), _written(tensors, values), device)


def sparse_allreduce(place: Place, tensor: torch.Tensor, op: Any) -> Started:
    """Reduce a sparse COO tensor in place, by gathering all ranks' indices and values."""
    own = tensor.detach()
    how = reduction(op, own.dtype)
    if how.op not in (ReduceOp.SUM, ReduceOp.AVERAGE):
        raise UnsupportedError(f"{op!r} of sparse tensors: they are added up, or averaged")
    sources = [flat(own._indices().t()), flat(own._values())]
    handle, device = _start(OpKind.ALLGATHER, place, sources, [argument(one) for one in sources])

    def finish() -> None:
        gathered = [
            allocated(handle, index, source, sum(handle.output_rows(index, place.size)))
            for index, source in enumerate(sources)
        ]
        scale = how.prescale / (place.size if how.op is ReduceOp.AVERAGE else 1)
        values = gathered[1].view(-1, *own._values().shape[1:])
        result = torch.sparse_coo_tensor(
            gathered[0].view(-1, own.sparse_dim()).t(),
            values if scale == 1 else values * scale,
            own.shape,
            check_invariants=True,  # other ranks' indices may be out of bounds
        )
        with torch.no_grad():
            tensor.copy_(result.coalesce())

    return Started(handle, [tensor], finish, device)


def broadcast(place: Place, tensor: torch.Tensor, root: int) -> Started:
    """Broadcast the root's tensor."""
    value = flat(tensor, moved_only=True)
    handle, device = _start(
        OpKind.BROADCAST,
        place,
        [value],
        [argument(value, value)],
        root=root,
        sealed=is_object(tensor),
    )
    return Started(handle, [tensor], _written([tensor], [value]), device)


def reduce(place: Place, tensor: torch.Tensor, root: int, is_root: bool, op: Any) -> Started:
    """Reduce a tensor to the root in place. The tensors of other ranks are unchanged."""
    value = flat(tensor)
    how = reduction(op, value.dtype)
    handle, device = _start(
        OpKind.REDUCE,
        place,
        [value],
        [argument(value, value)],
        root=root,
        reduce_op=how.op,
        prescale=how.prescale,
    )
    return Started(handle, [tensor], _written([tensor], [value]) if is_root else None, device)


def allgather(place: Place, outputs: Sequence[Tensors], inputs: Tensors) -> Started:
    """Gather each input from all ranks into a list of outputs, whose sizes may differ."""
    rooms = [Room(lists, moved_only=True) for lists in outputs]
    return _allgather(place, rooms, inputs, [one for lists in outputs for one in lists], False)


def allgather_single(place: Place, outputs: Tensors, inputs: Tensors) -> Started:
    """Gather each input from all ranks into a single output."""
    for output, given in zip(outputs, inputs, strict=True):
        _check_elements("the output", output, given.numel() * place.size)
    rooms = [Room([one], moved_only=True) for one in outputs]
    return _allgather(place, rooms, inputs, outputs, True)


def _allgather(
    place: Place, rooms: list[Room], inputs: Tensors, results: Tensors, all_equal: bool
) -> Started:
    sources = [flat(tensor, moved_only=True) for tensor in inputs]
    described = [room.argument(one) for one, room in zip(sources, rooms, strict=True)]
    if all_equal:  # one row per rank, all of equal size
        described = [_as_row(one, place.size) for one in described]
    handle, device = _start(
        OpKind.ALLGATHER,
        place,
        sources,
        described,
        keep=rooms,
        sealed=all(is_object(tensor) for tensor in inputs),
    )

    def finish() -> None:
        for index, room in enumerate(rooms):
            if len(room.sizes) > 1:
                _check_rows(handle.output_rows(index, place.size), room.sizes)
            room.deliver(handle, index, room.sizes)

    return Started(handle, list(results), finish, device)


def _as_row(described: TensorArg, size: int) -> TensorArg:
    elements = described.shape[0]
    return described._replace(shape=(1, elements), out_rows=size) if elements else described


def reduce_scatter(place: Place, outputs: Tensors, inputs: Sequence[Tensors], op: Any) -> Started:
    """Reduce each list of inputs, one per rank, and give every rank its own result."""
    sources = [joined(lists) for lists in inputs]
    splits = [sum(one.numel() for one in parts) for parts in zip(*inputs, strict=True)]
    if len(inputs) > 1 and len(set(splits)) > 1:
        raise ValueError("a group of reduce_scatter() needs inputs of equal sizes")
    uneven = len(set(splits)) > 1
    return _reduce_scatter(place, outputs, sources, op, splits if uneven else None)


def reduce_scatter_single(place: Place, outputs: Tensors, inputs: Tensors, op: Any) -> Started:
    """Reduce each input and give every rank an equal part."""
    for output, given in zip(outputs, inputs, strict=True):
        _check_elements("the input", given, output.numel() * place.size)
    return _reduce_scatter(place, outputs, [flat(one) for one in inputs], op, None)


def _reduce_scatter(
    place: Place, outputs: Tensors, sources: Tensors, op: Any, splits: list[int] | None
) -> Started:
    targets = [flat(tensor) for tensor in outputs]
    how = [reduction(op, one.dtype) for one in sources]
    handle, device = _start(
        OpKind.REDUCESCATTER,
        place,
        sources,
        [argument(*pair) for pair in zip(sources, targets, strict=True)],
        keep=targets,
        reduce_op=how[0].op,
        prescale=how[0].prescale,
        splits=splits,
    )
    return Started(handle, list(outputs), _written(outputs, targets), device)


def alltoall_single(
    place: Place,
    output: torch.Tensor,
    given: torch.Tensor,
    output_rows: Sequence[int],
    input_rows: Sequence[int],
) -> Started:
    """Send rows to each rank. Empty lists mean equal parts."""
    target, source = Room([output], moved_only=True), flat(given, moved_only=True)
    wanted = _elements(target.values, output, output_rows, place.size)
    splits = _elements(source, given, input_rows, place.size)
    return _alltoall(place, target, source, splits, wanted, [output])


def alltoall(place: Place, outputs: Tensors, inputs: Tensors) -> Started:
    """Send one tensor to each rank."""
    _check_count("outputs", outputs, place.size)
    _check_count("inputs", inputs, place.size)
    target = Room(outputs, moved_only=True)
    splits = [flat(one, moved_only=True).numel() for one in inputs]
    source = joined(inputs, moved_only=True)
    return _alltoall(place, target, source, splits, target.sizes, list(outputs))


def _alltoall(
    place: Place,
    target: Room,
    source: torch.Tensor,
    splits: list[int],
    wanted: list[int],
    results: list[torch.Tensor],
) -> Started:
    handle, device = _start(
        OpKind.ALLTOALL, place, [source], [target.argument(source)], keep=target, splits=splits
    )

    def finish() -> None:
        _check_rows(handle.output_rows(0, place.size), wanted)
        target.deliver(handle, 0, wanted)

    return Started(handle, results, finish, device)


def gather(place: Place, outputs: Tensors | None, given: torch.Tensor, root: int) -> Started:
    """Gather all ranks' tensors on the root. Other ranks have no outputs."""
    source = flat(given, moved_only=True)
    if outputs is not None:
        _check_count("gather_list", outputs, place.size)
    handle, device = _start(
        OpKind.GATHER, place, [source], [argument(source)], root=root, sealed=is_object(given)
    )
    if outputs is None:
        return Started(handle, [], None, device)

    def finish() -> None:
        rows = handle.output_rows(0, place.size)
        _check_rows(rows, [flat(one, moved_only=True).numel() for one in outputs])
        values = allocated(handle, 0, source, sum(rows))
        for output, value in zip(outputs, torch.split(values, rows), strict=True):
            write(output, value)

    return Started(handle, list(outputs), finish, device)


def scatter(place: Place, output: torch.Tensor, inputs: Tensors | None, root: int) -> Started:
    """Send one of the root's tensors to each rank."""
    target = flat(output, moved_only=True)
    source, splits = target[:0], None
    if inputs is not None:
        _check_count("scatter_list", inputs, place.size)
        splits = [flat(one, moved_only=True).numel() for one in inputs]
        source = joined(inputs, moved_only=True)
    handle, device = _start(
        OpKind.SCATTER,
        place,
        [source],
        [argument(source)],
        root=root,
        splits=splits,
        sealed=is_object(output),
    )

    def finish() -> None:
        rows = sum(handle.output_rows(0, place.size))
        _check_rows([rows], [target.numel()])
        write(output, allocated(handle, 0, target, rows))

    return Started(handle, [output], finish, device)


def barrier(place: Place) -> Started:
    """Wait for all ranks."""
    handle, _ = _start(OpKind.BARRIER, place, [], [])
    return Started(handle, [])


def _elements(
    values: torch.Tensor, tensor: torch.Tensor, rows: Sequence[int], size: int
) -> list[int]:
    """Return the number of elements of `values`, a tensor's memory, in each rank's rows."""
    if rows:
        if len(rows) != size:
            raise ValueError(f"{len(rows)} split sizes for a group of {size} ranks")
        if sum(rows) != tensor.shape[0]:
            raise ValueError(f"split sizes {list(rows)} for a tensor of {tensor.shape[0]} rows")
        each = values.numel() // tensor.shape[0] if tensor.shape[0] else 0
        return [count * each for count in rows]
    if tensor.dim() and tensor.shape[0] % size:
        raise ValueError(f"{tensor.shape[0]} rows can't be dealt out evenly to {size} ranks")
    return [values.numel() // size] * size


def _check_elements(what: str, tensor: torch.Tensor, expected: int) -> None:
    if tensor.numel() != expected:
        raise ValueError(f"{what} has {tensor.numel()} elements, where {expected} are needed")


def _check_count(what: str, tensors: Tensors, size: int) -> None:
    if len(tensors) != size:
        raise ValueError(f"{what} has {len(tensors)} tensors for a group of {size} ranks")


def _check_rows(sent: list[int], wanted: list[int]) -> None:
    if len(wanted) == len(sent) and wanted != sent:
        raise MismatchError(
            f"the ranks of the group have sent {sent} elements, and this rank expects {wanted}"
        )
