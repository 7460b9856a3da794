"""Collectives of numbers and arrays, for any Keras backend."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from horoscale.common.basics import Average
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.common.which_keras import IS_LEGACY, backend, to_numpy
from horoscale.keras.compression import Compression, of_arrays
from horoscale.numpy import movement, reductions, scattering

Array = np.ndarray[Any, Any]


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Reduce a value over the ranks: a number, an array, or a Keras tensor.

    Args:
        value: must have the same shape and dtype on all ranks.
        name: identifies this operation among pending ones. None: matched by call order.
        average: deprecated: True for op=Average, False for op=Sum.
        prescale_factor: factor applied to each rank's value before the reduction.
        postscale_factor: factor applied to the result.
        op: Average (the default), Sum, Min, Max or Product; for integers and bool also BitwiseAnd,
            BitwiseOr or BitwiseXor.
        compression: the compression of the value.
        process_set: the ranks that take part.

    Returns:
        An array with the value's shape and dtype.

    Raises:
        ValueError, MismatchError, HorovodInternalError: as in all collectives.
    """
    return reductions.allreduce(
        to_numpy(value),
        average=average,
        name=name,
        compression=of_arrays(compression),
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
    )


def allgather(
    value: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """Concatenate the values of all ranks along the first dimension.

    The first dimensions may differ. A number counts as an array with one element.
    """
    return movement.allgather(np.atleast_1d(to_numpy(value)), name=name, process_set=process_set)


def broadcast(
    value: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Return the value of the global rank `root_rank`. All ranks pass the same shape and dtype."""
    return movement.broadcast(to_numpy(value), root_rank, name=name, process_set=process_set)


def reducescatter(
    value: Any,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Return this rank's rows of a reduced value. `op` is as in allreduce()."""
    return scattering.reducescatter(to_numpy(value), name=name, op=op, process_set=process_set)


def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Broadcast the root's values of Keras variables to all ranks.

    Args:
        variables: a list such as model.weights, the same on all ranks.
        root_rank: the global rank of the sender.
        process_set: the ranks that take part.

    Raises:
        ValueError, MismatchError, HorovodInternalError: as in all collectives.
    """
    chosen = list(variables)
    # As bytes, because Keras has types that collectives do not support.
    values = [to_numpy(one if IS_LEGACY else one.value) for one in chosen]
    handles = [
        movement.broadcast_async_(
            value.reshape(-1).view(np.uint8),
            root_rank,
            # Not the variable's name, which contains a count of the models that a rank has created.
            name=f"broadcast_variables.{i}.{value.dtype}.{value.shape}",
            process_set=process_set,
        )
        for i, value in enumerate(values)
    ]
    for one, value, handle in zip(chosen, values, handles, strict=True):
        handle.wait()
        one.assign(value)


def broadcast_global_variables(root_rank: int) -> Any:
    """Return an op that broadcasts the root's global variables of a TensorFlow 1 graph.

    Raises RuntimeError otherwise, because Keras has no global variables.
    """
    if backend() == "tensorflow":
        from horoscale.tensorflow.functions import broadcast_global_variables as of_graph

        return of_graph(root_rank)
    raise RuntimeError(
        "Keras has no global variables: use hvd.callbacks.BroadcastGlobalVariablesCallback(0), or "
        "hvd.broadcast_variables(model.weights, root_rank=0)"
    )
