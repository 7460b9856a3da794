"""The short way for allreduces that come again: one call of the library, and little made in Python.

Preparing a call in the general way takes longer than the reduction of a small tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from horoscale._core import DataType, OpKind, Signature, Template
from horoscale.common.arguments import check_reduction, resolve_op, set_id
from horoscale.common.job import current_runtime
from horoscale.common.process_sets import ProcessSet, global_process_set


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
    """Return what runs, or starts, an allreduce on memory at two addresses.

    Args:
        dtype: of the elements, as the framework calls it.
        shape: of the tensor, whose elements lie in C order.
        data_type: gives the runtime's name of the dtype.
        op: as resolve_op() takes it.
        name: tells this operation from others that are pending; None: matched by order.
        prescale: each rank's values are multiplied by it before the reduction,
        postscale: and the result by this one.
        process_set: the ranks that take part.
        priority: higher is more urgent.

    Raises:
        ValueError: an argument is wrong, or there is no job.
    """
    templates = current_runtime().templates
    identity = 0 if process_set is global_process_set else set_id(process_set)
    if type(prescale) is not float or type(postscale) is not float:
        prescale, postscale = float(prescale), float(postscale)  # tensors may change later
    key = (name, op, prescale, postscale, identity, priority, dtype, shape)
    template = templates.recent.get(key)
    if template is None and (template := templates.find(key)) is None:
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
        template = current_runtime().prepare(key, signature)
    return template
