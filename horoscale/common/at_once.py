"""The short way for small allreduces: one call of the library, and nothing made anew in Python.

Preparing a call in the general way takes longer than the reduction of a small tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from horoscale._core import DataType, OpKind, Signature
from horoscale.common.arguments import check_reduction, resolve_op, set_id
from horoscale.common.job import current_runtime
from horoscale.common.process_sets import ProcessSet


def allreduce_at_once(
    tensor: Any,
    address: int | None,
    data_type: Callable[[Any], DataType],
    op: int | None,
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    priority: int,
) -> None:
    """Reduce a tensor over the ranks in place and wait for it.

    Args:
        tensor: has a dtype and a shape; its values lie in C order and may be written.
        address: where they lie; None: where its buffer is, which is the quicker way to say it.
        data_type: gives the runtime's name of the dtype.
        op: as resolve_op() takes it.
        name: tells this operation from others that are pending; None: matched by order.
        prescale: each rank's values are multiplied by it before the reduction,
        postscale: and the result by this one.
        process_set: the ranks that take part.
        priority: higher is more urgent.

    Raises:
        ValueError, DuplicateNameError, MismatchError, HorovodInternalError: as every allreduce.
    """
    runtime = current_runtime()
    identity = set_id(process_set)
    dtype, shape = tensor.dtype, tensor.shape
    key = (name, op, prescale, postscale, identity, priority, dtype, shape)
    request = runtime.requests.known.get(key)
    if request is None:
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
        request = runtime.requests.keep(key, signature)
    if address is None:
        request.place_buffer(tensor)
    else:
        request.place(0, address, address)
    runtime.run(request, keep_alive=tensor)
