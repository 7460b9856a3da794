"""The extension of a tf_keras (Keras 2) optimizer's class; see optimizer.py.

tf_keras has two kinds of optimizers, its own and those of tf_keras.optimizers.legacy. Both
aggregate the replicas' gradients in a method that an outer LossScaleOptimizer also calls, before it
checks whether gradients are finite.
"""

from __future__ import annotations

from typing import Any

from horoscale._core import UnsupportedError
from horoscale.common.basics import Adasum
from horoscale.keras.step import Step


class DistributedLegacy:
    """Reduces gradients over the ranks before the optimizer applies them."""

    _hvd_step: Step
    _hvd_passes: int
    _hvd_op: int

    def register_local_var(self, variable: Any) -> None:
        """Exclude the gradient of this variable from the reduction."""
        self._hvd_step.register_local([variable])

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Reduce the gradients over the ranks. Apply them on the last pass of a step.

        With skip_gradients_aggregation=True, or experimental_aggregate_gradients=False, the caller
        has already reduced them.
        """
        apply = super().apply_gradients  # type: ignore[misc]
        is_reduced = kwargs.pop("skip_gradients_aggregation", False)
        is_reduced |= not kwargs.pop("experimental_aggregate_gradients", True)
        kwargs["experimental_aggregate_gradients"] = False
        pairs = list(grads_and_vars)
        if is_reduced:
            return apply(pairs, *args, **kwargs)
        variables = [variable for _, variable in pairs]

        def apply_reduced(gradients: list[Any]) -> Any:
            return apply(list(zip(gradients, variables, strict=True)), *args, **kwargs)

        self._hvd_step.outside_of_graph(lambda: build(self, variables))
        return self._hvd_step([gradient for gradient, _ in pairs], variables, apply_reduced)

    def aggregate_gradients(self, grads_and_vars: Any) -> list[tuple[Any, Any]]:
        """Reduce the gradients over the ranks, for an outer LossScaleOptimizer."""
        if self._hvd_op == Adasum:
            raise UnsupportedError(
                "a LossScaleOptimizer around hvd.DistributedOptimizer() is not possible with "
                "op=Adasum, which reduces the changes of variables"
            )
        if self._hvd_passes > 1:
            raise ValueError(
                "a LossScaleOptimizer around hvd.DistributedOptimizer() does not support "
                "backward_passes_per_step=: wrap it the other way round, as in "
                "hvd.DistributedOptimizer(LossScaleOptimizer(optimizer))"
            )
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]
        reduced: list[Any] = self._hvd_step(
            [gradient for gradient, _ in pairs], variables, lambda gradients: gradients
        )
        return list(zip(reduced, variables, strict=True))

    _aggregate_gradients = aggregate_gradients  # of tf_keras.optimizers.legacy


def build(optimizer: Any, variables: list[Any]) -> None:
    """Create an optimizer's variables, unless they exist."""
    if hasattr(optimizer, "build"):
        optimizer.build(variables)
    else:
        optimizer._create_all_weights(variables)
