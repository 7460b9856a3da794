"""The fast path for repeated operations: one library call and little work in Python.

Validating and describing a call takes longer than a small operation. Each function here returns a
cached template. The template of a collective runs or starts the operation on two addresses, that of
a message on one. The functions for collectives take:

    dtype: the framework's dtype of the elements.
    shape: of the tensor, whose elements lie in C order.
    data_type: maps the dtype to the runtime's.
    name: identifies this operation among pending ones. None: matched by the order of calls.
    process_set: the ranks that take part.
    priority: higher is more urgent.

All raise ValueError if an argument is invalid or no job was joined. prepared_message() takes the
dtype, the number of elements, and the arguments of send() and recv().
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import Any

from horoscale._core import (
    ANY_RANK,
    DataType,
    MessageArg,
    OpKind,
    PreparedMessage,
    Signature,
    Template,
)
from horoscale.common.arguments import (
    ELEMENTWISE,
    check_even_split,
    check_has_rows,
    check_out,
    check_reduction,
    check_root,
    resolve_op,
    scattered_rows,
    set_id,
    titled,
)
from horoscale.common.job import current_runtime
from horoscale.common.messages import ANY, Channel, Source, check_peer, check_tag
from horoscale.common.process_sets import ProcessSet, at_removal, global_process_set


def _forget(_: object) -> None:
    """Clear the caches: the id of a removed set may be reused for a set with other ranks."""
    runtime = current_runtime()
    runtime.templates.clear()
    runtime.messages.clear()


at_removal(_forget)


def prepared_allreduce(
    dtype: Any,
    shape: Sequence[int],
    data_type: Callable[[Any], DataType],
    op: int | None,
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    priority: int,
) -> Template:
    """Return the template of an allreduce.

    `op` is as in resolve_op(). Each rank's values are multiplied by `prescale` before the
    reduction, and the result by `postscale`.
    """
    templates = current_runtime().templates
    identity = 0 if process_set is global_process_set else set_id(process_set)
    if type(prescale) is not float or type(postscale) is not float:
        prescale, postscale = float(prescale), float(postscale)  # tensors may change later
    key = (name, op, prescale, postscale, identity, priority, dtype, shape)
    template = templates.recent.get(key)
    if template is None and (template := templates.find(key)) is None:
        how = op, prescale, postscale
        signature = _reduction(
            OpKind.ALLREDUCE, data_type(dtype), shape, how, name, identity, priority
        )
        template = current_runtime().prepare(key, signature)
    return template


def prepared_broadcast(
    dtype: Any,
    shape: Sequence[int],
    data_type: Callable[[Any], DataType],
    root_rank: int,
    name: str | None,
    process_set: ProcessSet,
    priority: int,
) -> Template:
    """Return the template of a broadcast from a global rank."""
    runtime = current_runtime()
    identity = set_id(process_set)
    root = index(root_rank)
    key = ("broadcast", name, root, identity, priority, dtype, shape)
    template = runtime.templates.get(key)
    if template is None:
        check_root(root, process_set)
        tensors = ((data_type(dtype), tuple(shape)),)
        signature = Signature(
            OpKind.BROADCAST, tensors, name, identity, root=root, priority=priority
        )
        template = runtime.prepare(key, signature)
    return template


def prepared_gather(
    kind: OpKind,
    dtype: Any,
    shape: Sequence[int],
    data_type: Callable[[Any], DataType],
    out: Any,
    name: str | None,
    process_set: ProcessSet,
    priority: int,
) -> Template:
    """Return the template of an allgather, or alltoall of equal parts, into memory like `out`."""
    runtime = current_runtime()
    identity = set_id(process_set)
    key = (kind, name, identity, priority, dtype, shape, out.dtype, out.shape)
    template = runtime.templates.get(key)
    if template is None:
        check_has_rows(shape, kind.name.lower())
        if kind is OpKind.ALLTOALL:
            check_even_split(shape[0], process_set)
        title = titled(kind.name.lower(), name, identity)
        _check_room(out, None, dtype, shape, title)
        tensors = ((data_type(dtype), tuple(shape)),)
        signature = Signature(kind, tensors, name, identity, priority=priority)
        template = runtime.prepare(key, signature, out.shape[0])
    return template


def prepared_reducescatter(
    dtype: Any,
    shape: Sequence[int],
    data_type: Callable[[Any], DataType],
    out: Any,
    op: int,
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    priority: int,
) -> Template:
    """Return the template of a reducescatter of equal parts into memory like `out`."""
    runtime = current_runtime()
    identity = set_id(process_set)
    how = op, float(prescale), float(postscale)
    key = (how, name, identity, priority, dtype, shape, out.dtype, out.shape)
    template = runtime.templates.get(key)
    if template is None:
        check_has_rows(shape, "reducescatter")
        title = titled("reducescatter", name, identity)
        _check_room(out, scattered_rows(shape[0], process_set), dtype, shape, title)
        signature = _reduction(
            OpKind.REDUCESCATTER, data_type(dtype), shape, how, name, identity, priority
        )
        template = runtime.prepare(key, signature)
    return template


def prepared_message(
    is_send: bool,
    dtype: Any,
    elements: int,
    data_type: Callable[[Any], DataType],
    peer: int | Source,
    tag: int,
    process_set: ProcessSet,
    channel: Channel = Channel.TENSORS,
) -> PreparedMessage:
    """Return the template of a send to the global rank `peer`, or a receive from it or ANY."""
    runtime = current_runtime()
    identity = 0 if process_set is global_process_set else set_id(process_set)
    key = (is_send, peer, tag, channel, identity, dtype, elements)
    # The key may equal a cached one although its type would be rejected.
    is_known = type(tag) is int and (type(peer) is int or peer is ANY)
    message = runtime.messages.get(key) if is_known else None
    if message is None:
        argument = "dst" if is_send else "src"
        whom = ANY_RANK if peer is ANY else check_peer(argument, peer, process_set)
        described = MessageArg(
            whom, check_tag(tag), channel, 0, data_type(dtype), elements, identity
        )
        message = runtime.prepare_message(key, described, is_send)
    return message


def _reduction(
    kind: OpKind,
    element: DataType,
    shape: Sequence[int],
    how: tuple[int | None, float, float],
    name: str | None,
    identity: int,
    priority: int,
) -> Signature:
    op, prescale, postscale = how
    operator = resolve_op(op) if kind is OpKind.ALLREDUCE else resolve_op(op, allowed=ELEMENTWISE)
    check_reduction(element, operator)
    return Signature(
        kind,
        ((element, tuple(shape)),),
        name,
        identity,
        operator,
        prescale,
        postscale,
        priority=priority,
    )


def _check_room(
    out: Any, rows: int | None, dtype: Any, shape: Sequence[int], operation: str
) -> None:
    if out.dtype != dtype:
        raise ValueError(f"out= has dtype {out.dtype}, but the result of {operation} has {dtype}")
    check_out(out.shape, rows, shape[1:], operation)
