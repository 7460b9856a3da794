"""GraphStep: reduces the gradients of a step with TensorFlow, eagerly or in a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from horoscale._core import UnsupportedError
from horoscale.common.basics import Adasum
from horoscale.keras.adasum import apply_and_combine
from horoscale.keras.step import Apply
from horoscale.tensorflow.aggregation import GradientAggregation
from horoscale.tensorflow.gradients import GradientReduction, chosen_groups


class GraphStep:
    """Reduces gradients by operations of horoscale.tensorflow; see Step."""

    def __init__(
        self, passes: int, average_passes: bool, num_groups: int, groups: Any, **options: Any
    ) -> None:
        """Take the options of GradientReduction, and how to aggregate passes."""
        self._reduction = GradientReduction(groups=chosen_groups(num_groups, groups), **options)
        self._combines_steps = options["op"] == Adasum
        reduce = _as_they_are if self._combines_steps else self._reduction
        self._aggregation = GradientAggregation(reduce, passes, average_passes)
        if self._combines_steps:
            self._reduction.scale_local_gradients = False

    def register_local(self, variables: Iterable[Any]) -> None:
        """Exclude the gradients of these variables from the reduction."""
        self._reduction.register_local(variables)

    def outside_of_graph(self, build: Callable[[], None]) -> None:
        """Call `build` outside the graph that is being traced."""
        with tf.init_scope():
            build()

    def __call__(self, gradients: list[Any], variables: Sequence[Any], apply: Apply) -> Any:
        """Reduce the gradients. `apply` them on the last pass of a step."""
        reduced = self._aggregation.reduce(gradients, variables)
        if not self._combines_steps:
            return self._aggregation.apply(lambda: apply(reduced), reduced)
        if not tf.compat.v1.executing_eagerly_outside_functions():
            raise UnsupportedError("op=Adasum needs eager mode or tf.function, not a tf.Graph")
        return self._aggregation.apply(
            lambda: apply_and_combine(reduced, variables, apply, _read, self._reduction), reduced
        )


def _as_they_are(gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    return list(gradients)


def _read(variable: Any) -> tf.Tensor:
    return tf.identity(tf.convert_to_tensor(variable))
