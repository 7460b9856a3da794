"""The short way for allreduces that come again: one call of the library, and little made in Python.

Preparing a call in the general way takes longer than the reduction of a small tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from horoscale._core import DataType, Handle, OpKind, Runtime, Signature
from horoscale.common.arguments import check_reduction, resolve_op, set_id
from horoscale.common.job import current_runtime
from horoscale.common.process_sets import ProcessSet, global_process_set


def allreduce_at_once(
    tensor: Any,
    source: int,
    target: int,
    data_type: Callable[[Any], DataType],
    op: int | None,
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    priority: int,
    keep_alive: object,
) -> None:
    """Reduce a tensor over the ranks and wait for it.

    Args:
        tensor: has a dtype and a shape.
        source: where its values lie in C order.
        target: where the result goes, in C order; may be the same place.
        data_type: gives the runtime's name of the dtype.
        op: as resolve_op() takes it.
        name: tells this operation from others that are pending; None: matched by order.
        prescale: each rank's values are multiplied by it before the reduction,
        postscale: and the result by this one.
        process_set: the ranks that take part.
        priority: higher is more urgent.
        keep_alive: owns the memory; held until the operation is done, whatever happens here.

    Raises:
        ValueError, DuplicateNameError, MismatchError, HorovodInternalError: as every allreduce.
    """
    runtime = current_runtime()
    template = _template(
        runtime, tensor, data_type, op, name, prescale, postscale, process_set, priority
    )
    template.run(source, target, keep_alive)


def start_allreduce(
    tensor: Any,
    source: int,
    target: int,
    data_type: Callable[[Any], DataType],
    op: int | None,
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    priority: int,
    keep_alive: object,
) -> Handle:
    """Do allreduce_at_once() without waiting, and return the operation."""
    runtime = current_runtime()
    template = _template(
        runtime, tensor, data_type, op, name, prescale, postscale, process_set, priority
    )
    return template.start(source, target, keep_alive)


def _template(
    runtime: Runtime,
    tensor: Any,
    data_type: Callable[[Any], DataType],
    op: int | None,
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    priority: int,
) -> Any:
    identity = 0 if process_set is global_process_set else set_id(process_set)
    dtype, shape = tensor.dtype, tensor.shape
    if type(prescale) is not float or type(postscale) is not float:
        prescale, postscale = float(prescale), float(postscale)  # tensors may change later
    key = (name, op, prescale, postscale, identity, priority, dtype, shape)
    template = runtime.templates.recent.get(key)
    if template is None and (template := runtime.templates.find(key)) is None:
        element, operator = data_type(dtype), resolve_op(op)
        check_reduction(element, operator)
        signature = Signature(
            OpKind.ALLREDUCE,
            ((element, tuple(shape)),),
            name,
            identity,
            operator,
            prescale,
            postscale,
            priority=priority,
        )
        template = runtime.prepare(key, signature)
    return template
