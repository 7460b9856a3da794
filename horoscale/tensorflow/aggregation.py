"""GradientAggregation: several backward passes of a rank for each reduction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from horoscale.tensorflow.gradients import GradientReduction


class GradientAggregation:
    """Sums gradients on this rank and reduces the sums every `passes` times.

    The sums and the count are variables: it works alike in eager mode, in a tf.function and in a
    graph of TensorFlow 1. All ranks have to call it equally often.
    """

    def __init__(self, reduction: GradientReduction, passes: int, average: bool) -> None:
        """`average`: divide the sums by the number of passes."""
        if passes < 1:
            raise ValueError(f"backward_passes_per_step={passes} has to be at least 1")
        self._reduction = reduction
        self._passes = passes
        self._average = average
        self._count: tf.Variable | None = None
        self._sums: list[Any] = []  # None where there is no gradient

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Add the gradients of one pass; return the reduced sums, which count on the last pass.

        On other passes they are zeros, and apply() does not use them.
        """
        if self._passes == 1:
            return self._reduction(gradients, variables)
        dense = [None if one is None else tf.convert_to_tensor(one) for one in gradients]
        self._make_variables(dense)
        assert self._count is not None
        added = [
            None if value is None else total.assign_add(value)
            for total, value in zip(self._sums, dense, strict=True)
        ]
        kept = [i for i, value in enumerate(added) if value is not None]
        with tf.control_dependencies([added[i] for i in kept]):
            is_last = tf.equal(self._count.assign_add(1) % self._passes, 0)

        def reduced() -> list[tf.Tensor]:
            sums = [tf.identity(self._sums[i]) for i in kept]
            scaled = [one / self._passes for one in sums] if self._average else sums
            results = self._reduction(scaled, [variables[i] for i in kept])
            with tf.control_dependencies(sums):
                cleared = [self._sums[i].assign(tf.zeros_like(self._sums[i])) for i in kept]
            with tf.control_dependencies(cleared):
                return [tf.identity(result) for result in results]

        def unchanged() -> list[tf.Tensor]:
            return [tf.zeros_like(dense[i]) for i in kept]

        outcome: list[Any] = [None] * len(dense)
        for i, result in zip(kept, tf.cond(is_last, reduced, unchanged), strict=True):
            outcome[i] = result
        return outcome

    def apply(self, step: Callable[[], Any], gradients: Sequence[Any]) -> Any:
        """Do `step`, which uses what reduce() returned, if this was the last pass."""
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

    def _make_variables(self, gradients: Sequence[Any]) -> None:
        if self._count is not None:
            return
        for gradient in gradients:
            if gradient is not None and not gradient.shape.is_fully_defined():
                raise ValueError("backward_passes_per_step needs gradients of a known shape")
        shapes = [None if one is None else (one.shape, one.dtype) for one in gradients]
        with tf.init_scope():
            self._count = tf.Variable(0, dtype=tf.int64, trainable=False)
            self._sums = [
                None if one is None else tf.Variable(tf.zeros(*one), trainable=False)
                for one in shapes
            ]


def _is_op(value: Any) -> bool:
    return isinstance(value, tf.Tensor | tf.Operation)
