"""DistributedOptimizer: an optimizer that applies gradients reduced over the ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horoscale._core import UnsupportedError
from horoscale.common.basics import Adasum, Average
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.tensorflow.aggregation import GradientAggregation
from horoscale.tensorflow.compression import AnyCompressor, Compression
from horoscale.tensorflow.gradients import GradientReduction, chosen_groups


class _DistributedOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """Wraps an optimizer of tf.compat.v1.train."""

    def __init__(
        self,
        optimizer: Any,
        name: str,
        use_locking: bool,
        reduction: GradientReduction,
        aggregation: GradientAggregation,
    ) -> None:
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer = optimizer
        self._reduction = reduction
        self._aggregation = aggregation

    def register_local_var(self, variable: Any) -> None:
        """Exclude the gradient of this variable from the reduction."""
        self._reduction.register_local([variable])

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Compute the gradients and reduce them over the ranks."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        gradients, variables = [one for one, _ in pairs], [one for _, one in pairs]
        return list(zip(self._aggregation.reduce(gradients, variables), variables, strict=True))

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Apply reduced gradients on the last pass of a step."""
        pairs = list(grads_and_vars)
        gradients = [gradient for gradient, _ in pairs]

        def step() -> Any:
            return self._optimizer.apply_gradients(pairs, *args, **kwargs)

        return self._aggregation.apply(step, gradients)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """Return a slot of the wrapped optimizer."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """Return the names of the wrapped optimizer's slots."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """Return the variables of the wrapped optimizer."""
        return self._optimizer.variables(*args, **kwargs)


def DistributedOptimizer(  # noqa: N802 (Horovod's name)
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompressor = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Return an optimizer that applies gradients reduced over the ranks.

    Args:
        optimizer: an optimizer of tf.compat.v1.train, or of Keras with its TensorFlow backend.
        name: the name of a tf.compat.v1.train optimizer. None: "Distributed" followed by its class
            name.
        use_locking: as for tf.compat.v1.train optimizers.
        device_dense: the device of the operation for tensors.
        device_sparse: the device of the operation for tf.IndexedSlices.
        compression: the compression of gradients.
        sparse_as_dense: reduce tf.IndexedSlices as tensors.
        backward_passes_per_step: the number of gradients to sum before the ranks reduce the sums
            and the optimizer runs a step.
        op: Average (the default), Sum, Min, Max or Product; for Keras optimizers also Adasum.
        gradient_predivide_factor: with op=Average, divide by this factor before the sum, and by
            (number of ranks) / factor after it.
        average_aggregated_gradients: divide the sums by the number of passes.
        num_groups: an older name of `groups`, for a number.
        groups: the number of groups of gradients, each reduced all or nothing; or lists of
            variables, one list per group.
        process_set: the ranks that take part.
        scale_local_gradients: divide the gradients of local variables by the number of ranks.

    Returns:
        A Keras optimizer is modified in place, as by horoscale.keras.DistributedOptimizer(), and
        returned. A tf.compat.v1.train optimizer is wrapped. Both have a method
        register_local_var(variable).

    Raises:
        ValueError: an argument is invalid, or hvd.init() was not called.
        NotImplementedError: the combination is not supported, such as op=Adasum for a
            tf.compat.v1.train optimizer.
    """
    from horoscale.keras import optimizer as of_keras  # imports this package

    if of_keras.is_optimizer(optimizer):
        return of_keras.DistributedOptimizer(
            optimizer,
            name,
            device_dense,
            device_sparse,
            compression,
            sparse_as_dense,
            gradient_predivide_factor,
            op,
            backward_passes_per_step,
            average_aggregated_gradients,
            num_groups,
            groups,
            process_set,
            scale_local_gradients,
        )
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        raise ValueError(
            "hvd.DistributedOptimizer() takes an optimizer of Keras or tf.compat.v1.train, not "
            f"{optimizer!r}"
        )
    if op == Adasum:
        raise UnsupportedError(
            "op=Adasum is not supported for optimizers of tf.compat.v1.train, only for those of "
            "Keras"
        )
    reduction = GradientReduction(
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        chosen_groups(num_groups, groups),
        process_set,
        scale_local_gradients,
    )
    aggregation = GradientAggregation(
        reduction, backward_passes_per_step, average_aggregated_gradients
    )
    own_name = name or f"Distributed{type(optimizer).__name__}"
    return _DistributedOptimizer(optimizer, own_name, use_locking, reduction, aggregation)
