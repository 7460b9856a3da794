"""GraphStep: the gradients of a step with TensorFlow, eagerly or in a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from horoscale.keras.step import Apply
from horoscale.tensorflow.aggregation import GradientAggregation
from horoscale.tensorflow.gradients import GradientReduction, chosen_groups


class GraphStep:
    """Reduces gradients by operations of horoscale.tensorflow; see Step."""

    def __init__(
        self, passes: int, average_passes: bool, num_groups: int, groups: Any, **options: Any
    ) -> None:
        """The options are GradientReduction's."""
        self._reduction = GradientReduction(groups=chosen_groups(num_groups, groups), **options)
        self._aggregation = GradientAggregation(self._reduction, passes, average_passes)

    def register_local(self, variables: Iterable[Any]) -> None:
        """Exclude the gradients of these variables from the reduction."""
        self._reduction.register_local(variables)

    def outside_of_graph(self, build: Callable[[], None]) -> None:
        """Make variables."""
        with tf.init_scope():
            build()

    def __call__(self, gradients: list[Any], variables: Sequence[Any], apply: Apply) -> Any:
        """Reduce the gradients, and `apply` them on the last pass of a step."""
        reduced = self._aggregation.reduce(gradients, variables)
        return self._aggregation.apply(lambda: apply(reduced), reduced)
