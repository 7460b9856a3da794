"""GradientAggregation: several backward passes per reduction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horoscale.tensorflow.variables import key_of

# Takes gradients and their variables, and returns reduced gradients, like a GradientReduction.
Reduce = Callable[[Sequence[Any], Sequence[Any]], list[Any]]


class GradientAggregation:
    """Sums gradients on this rank and reduces the sums every `passes` passes.

    The sums and the count are variables, so it works in eager mode, in a tf.function and in a
    TensorFlow 1 graph. All ranks must call it equally often.
    """

    def __init__(self, reduction: Reduce, passes: int, average: bool) -> None:
        """`average`: divide the sums by the number of passes."""
        if passes < 1:
            raise ValueError(f"backward_passes_per_step={passes} must be at least 1")
        self._reduction = reduction
        self._passes = passes
        self._average = average
        self._count: tf.Variable | None = None
        self._sums: dict[int, tf.Variable] = {}  # by key_of(): some variables may be frozen later

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Add the gradients of one pass. Return the reduced sums, which are valid on the last pass.

        On other passes they are zeros, which apply() does not use.
        """
        if self._passes == 1:
            return self._reduction(gradients, variables)
        dense = [None if one is None else tf.convert_to_tensor(one) for one in gradients]
        self._make_variables(dense, variables)
        assert self._count is not None
        kept = [i for i, value in enumerate(dense) if value is not None]
        totals = {i: self._sums[key_of(variables[i])] for i in kept}
        with tf.control_dependencies([totals[i].assign_add(dense[i]) for i in kept]):
            is_last = tf.equal(self._count.assign_add(1) % self._passes, 0)

        def reduced() -> list[tf.Tensor]:
            sums = [tf.identity(totals[i]) for i in kept]
            scaled = [one / self._passes for one in sums] if self._average else sums
            results = self._reduction(scaled, [variables[i] for i in kept])
            with tf.control_dependencies(sums):
                cleared = [totals[i].assign(tf.zeros_like(totals[i])) for i in kept]
            with tf.control_dependencies(cleared):
                return [tf.identity(result) for result in results]

        def unchanged() -> list[tf.Tensor]:
            return [tf.zeros_like(dense[i]) for i in kept]

        outcome: list[Any] = [None] * len(dense)
        for i, result in zip(kept, tf.cond(is_last, reduced, unchanged), strict=True):
            outcome[i] = result
        return outcome

    def apply(self, step: Callable[[], Any], gradients: Sequence[Any]) -> Any:
        """Run `step` with the results of reduce(), if this was the last pass."""
        if self._passes == 1:
            return step()
        assert self._count is not None
        with tf.control_dependencies([one for one in gradients if one is not None]):
            is_last = tf.equal(self._count % self._passes, 0)

        def stepped() -> tf.Tensor:
            outcome = step()
            with tf.control_dependencies([outcome] if _is_op(outcome) else []):
                return tf.constant(True)

        return tf.cond(is_last, stepped, lambda: tf.constant(False))

    def _make_variables(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        shapes = {}
        for gradient, variable in zip(gradients, variables, strict=True):
            if gradient is None or key_of(variable) in self._sums:
                continue
            if not gradient.shape.is_fully_defined():
                raise ValueError("backward_passes_per_step needs gradients of a known shape")
            shapes[key_of(variable)] = gradient.shape, gradient.dtype
        with tf.init_scope():
            if self._count is None:
                self._count = tf.Variable(0, dtype=tf.int64, trainable=False)
            for key, shape in shapes.items():
                self._sums[key] = tf.Variable(tf.zeros(*shape), trainable=False)


def _is_op(value: Any) -> bool:
    return isinstance(value, tf.Tensor | tf.Operation)
