"""JaxStep: the gradients of a step with JAX, whose steps are compiled by XLA.

The compiled step calls back into Python once, with all gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from horoscale.keras.backend import Apply
from horoscale.keras.eager_step import EagerStep
from horoscale.numpy.reductions import grouped_allreduce


class JaxStep:
    """Reduces gradients within a compiled step; see Step."""

    def __init__(self, passes: int, **options: Any) -> None:
        """The options are EagerStep's; all passes of a step are one compiled step."""
        if passes != 1:
            raise ValueError(
                "backward_passes_per_step= is not possible with Keras' JAX backend: give the "
                "optimizer gradient_accumulation_steps="
            )
        self._eager = EagerStep(grouped_allreduce, passes=1, **options)

    def register_local(self, variables: Iterable[Any]) -> None:
        """Leave the gradients of these variables to each rank."""
        self._eager.register_local(variables)

    def outside_of_graph(self, build: Callable[[], None]) -> None:
        """Make variables."""
        build()

    def __call__(self, gradients: list[Any], variables: Sequence[Any], apply: Apply) -> Any:
        """Reduce the gradients and `apply` them."""
        present = [i for i, gradient in enumerate(gradients) if gradient is not None]
        chosen = [variables[i] for i in present]

        def reduce(*arrays: Any) -> list[np.ndarray[Any, Any]]:
            return self._eager.reduce([np.asarray(array) for array in arrays], chosen)

        shapes = [jax.ShapeDtypeStruct(gradients[i].shape, gradients[i].dtype) for i in present]
        # Ordered: the ranks' steps have to meet.
        reduced = io_callback(reduce, shapes, *[gradients[i] for i in present], ordered=True)
        results = list(gradients)
        for i, gradient in zip(present, reduced, strict=True):
            results[i] = gradient
        return apply(results)
