"""The short way for broadcasts, allgathers, alltoalls and reducescatters that come again.

As at_once has it for allreduces: with memory for the result, a call that repeats is one call of the
library.

All take:
    tensor: has a dtype and a shape.
    source: where its values lie in C order.
    target: where the result goes, in C order.
    data_type: gives the runtime's name of the dtype.
    name, process_set, priority: as the collective itself.
    keep_alive: owns the memory; held until the operation is done, whatever happens here.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import Any

from horoscale._core import DataType, OpKind, Signature
from horoscale.common.arguments import (
    check_even_split,
    check_has_rows,
    check_out,
    check_reduction,
    check_root,
    resolve_op,
    scattered_rows,
    set_id,
)
from horoscale.common.job import current_runtime
from horoscale.common.process_sets import ProcessSet


def broadcast_at_once(
    tensor: Any,
    source: int,
    target: int,
    root_rank: int,
    data_type: Callable[[Any], DataType],
    name: str | None,
    process_set: ProcessSet,
    priority: int,
    keep_alive: object,
) -> None:
    """Fill the target with the root's values, and wait for them. Raises as every broadcast."""
    runtime = current_runtime()
    identity = set_id(process_set)
    root, dtype, shape = index(root_rank), tensor.dtype, tensor.shape
    key = ("broadcast", name, root, identity, priority, dtype, shape)
    template = runtime.templates.get(key)
    if template is None:
        check_root(root, process_set)
        tensors = ((data_type(dtype), tuple(shape)),)
        signature = Signature(
            OpKind.BROADCAST, tensors, name, identity, root=root, priority=priority
        )
        template = runtime.prepare(key, signature)
    runtime.run_again(template, source, target, keep_alive)


def gather_at_once(
    kind: OpKind,
    tensor: Any,
    source: int,
    out: Any,
    target: int,
    data_type: Callable[[Any], DataType],
    name: str | None,
    process_set: ProcessSet,
    priority: int,
    keep_alive: object,
) -> None:
    """Do an allgather, or an alltoall of equal parts, into `out`, which is at the target, and wait.

    Raises as every one: ValueError where `out` has another dtype or shape.
    """
    runtime = current_runtime()
    identity = set_id(process_set)
    dtype, shape = tensor.dtype, tensor.shape
    key = (kind, name, identity, priority, dtype, shape, out.dtype, out.shape)
    template = runtime.templates.get(key)
    if template is None:
        check_has_rows(shape, kind.name.lower())
        if kind is OpKind.ALLTOALL:
            check_even_split(shape[0], process_set)
        _check_room(out, None, tensor)
        tensors = ((data_type(dtype), tuple(shape)),)
        signature = Signature(kind, tensors, name, identity, priority=priority)
        template = runtime.prepare(key, signature, rows=out.shape[0])
    # What has no elements may have no address; nothing is written there.
    runtime.run_again(template, source, target or 1, keep_alive)


def reducescatter_at_once(
    tensor: Any,
    source: int,
    out: Any,
    target: int,
    data_type: Callable[[Any], DataType],
    op: int,
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    priority: int,
    keep_alive: object,
) -> None:
    """Do a reducescatter of equal parts into `out`, which is at the target, and wait.

    Raises as every one: ValueError where `out` has another dtype or shape.
    """
    runtime = current_runtime()
    identity = set_id(process_set)
    dtype, shape = tensor.dtype, tensor.shape
    # Tensors may change later.
    prescale, postscale = float(prescale), float(postscale)
    key = (op, name, prescale, postscale, identity, priority, dtype, shape, out.dtype, out.shape)
    template = runtime.templates.get(key)
    if template is None:
        check_has_rows(shape, "reducescatter")
        _check_room(out, scattered_rows(shape[0], process_set), tensor)
        element, operator = data_type(dtype), resolve_op(op)
        check_reduction(element, operator)
        signature = Signature(
            OpKind.REDUCESCATTER,
            ((element, tuple(shape)),),
            name,
            identity,
            operator,
            prescale,
            postscale,
            priority=priority,
        )
        template = runtime.prepare(key, signature)
    runtime.run_again(template, source, target, keep_alive)


def _check_room(out: Any, rows: int | None, like: Any) -> None:
    if out.dtype != like.dtype:
        raise ValueError(f"out= is of {out.dtype}, the result of {like.dtype}")
    check_out(out.shape, rows, like.shape[1:])
