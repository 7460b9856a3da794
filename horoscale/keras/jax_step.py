"""JaxStep: reduces the gradients of a step with JAX, which XLA compiles.

The compiled step calls the library once, with all gradients. If XLA cannot call it, the step calls
back into Python once.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from itertools import chain
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from horoscale.keras import xla
from horoscale.keras.eager_step import AllreduceGroups, EagerStep, Group, one_by_one
from horoscale.numpy.reductions import grouped_allreduce


class JaxStep(EagerStep):
    """Reduces gradients within a compiled step; see Step."""

    _reduces_groups_together = True

    def __init__(self, passes: int, **options: Any) -> None:
        """Take the options of EagerStep. All passes of a step form one compiled step."""
        if passes != 1:
            raise ValueError(
                "backward_passes_per_step= is not supported with Keras' JAX backend: use the "
                "optimizer's gradient_accumulation_steps="
            )
        super().__init__(_allreduce_groups, passes=1, **options)


def _allreduce_groups(groups: Sequence[Group], **options: Any) -> list[list[Any]]:
    return way()(groups, **options)


@functools.cache
def way() -> AllreduceGroups:
    """Return the function that reaches the library. Ranks may use different ones."""
    try:
        xla.load()
    except (RuntimeError, OSError) as error:
        warnings.warn(
            f"XLA cannot call horoscale directly ({error}): training steps call back into Python, "
            "which is slower",
            RuntimeWarning,
            stacklevel=2,
        )
        return through_python
    return xla.allreduce_groups


def through_python(groups: Sequence[Group], **options: Any) -> list[list[Any]]:
    """Reduce like xla.allreduce_groups() by one call of Python, with arrays in host memory."""
    empty = [group._replace(tensors=[None] * len(group.tensors)) for group in groups]

    def reduce(*arrays: Any) -> list[np.ndarray[Any, Any]]:
        whole = iter([np.asarray(array) for array in arrays])
        chosen = [group._replace(tensors=[next(whole) for _ in group.tensors]) for group in empty]
        return list(chain.from_iterable(one_by_one(grouped_allreduce)(chosen, **options)))

    flat = list(chain.from_iterable(group.tensors for group in groups))
    shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in flat]
    # Ordered, so that the steps of all ranks match.
    reduced = iter(io_callback(reduce, shapes, *flat, ordered=True))
    return [[next(reduced) for _ in group.tensors] for group in empty]
