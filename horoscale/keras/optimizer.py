"""DistributedOptimizer: a Keras optimizer that applies gradients reduced over the ranks.

It works with every Keras backend, because all of them pass the gradients of a step to apply().
There they are reduced, before Keras clips or accumulates them or checks that they are finite.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from horoscale.common.basics import Adasum, Average
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.common.which_keras import IS_LEGACY, backend, keras
from horoscale.keras.adasum import check_options
from horoscale.keras.backend import make_step
from horoscale.keras.compression import Compression
from horoscale.keras.legacy_optimizer import DistributedLegacy
from horoscale.keras.step import Apply, Step


class _Distributed:
    """The extension of a Keras optimizer's class."""

    _hvd_step: Step

    def register_local_var(self, variable: Any) -> None:
        """Exclude the gradient of this variable from the reduction."""
        self._hvd_step.register_local([variable])

    def build(self, variables: Any) -> Any:
        """Create the optimizer's variables. Keras calls this before it compiles training steps."""
        caller: Any = sys._getframe(1).f_locals.get("self")
        if caller is not self and isinstance(caller, keras.optimizers.LossScaleOptimizer):
            raise ValueError(
                "a LossScaleOptimizer around hvd.DistributedOptimizer() would skip steps on one "
                "rank and not on another: wrap it the other way round, as in "
                "hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer)), also "
                "with mixed_float16"
            )
        return super().build(variables)  # type: ignore[misc]

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Reduce the gradients over the ranks. Apply them on the last pass of a step."""
        variables = list(trainable_variables or self._trainable_variables)  # type: ignore[attr-defined]
        if not self.built:  # type: ignore[attr-defined]
            self._hvd_step.outside_of_graph(lambda: self.build(variables))
        apply = super().apply  # type: ignore[misc]
        given = () if trainable_variables is None else (variables,)
        return self._hvd_reduce(grads, variables, lambda reduced: apply(reduced, *given))

    def stateless_apply(
        self, optimizer_variables: Any, grads: Any, trainable_variables: Any
    ) -> Any:
        """Do the same as apply(), for the JAX backend."""
        stateless_apply = super().stateless_apply  # type: ignore[misc]
        if not isinstance(self, keras.optimizers.LossScaleOptimizer):
            return stateless_apply(optimizer_variables, grads, trainable_variables)  # calls apply()

        def apply(reduced: list[Any]) -> Any:
            return stateless_apply(optimizer_variables, reduced, trainable_variables)

        return self._hvd_reduce(grads, self._trainable_variables, apply)

    def _hvd_reduce(self, grads: Any, variables: Sequence[Any], apply: Apply) -> Any:
        return self._hvd_step(list(grads), variables, apply)


def DistributedOptimizer(  # noqa: N802 (Horovod's name)
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Make a Keras optimizer apply gradients reduced over the ranks.

    The optimizer is modified in place and keeps its variables and iterations. It is saved as an
    instance of its original class; load_model() restores a DistributedOptimizer. With the
    TensorFlow backend, XLA is disabled for the model that uses it, but the steps are still graphs.

    Args:
        optimizer: any keras.optimizers.Optimizer. Pass a LossScaleOptimizer here rather than wrap
            the result, so that the ranks decide together whether gradients are finite.
        name: accepted for compatibility with Horovod. A Keras optimizer already has a name.
        device_dense: the device of the operation for tensors, with the TensorFlow backend.
        device_sparse: the device of the operation for tf.IndexedSlices, with the TensorFlow
            backend.
        compression: the compression of gradients: a compressor of hvd.Compression, not powersgd.
        sparse_as_dense: reduce tf.IndexedSlices as tensors.
        gradient_predivide_factor: with op=Average, divide by this factor before the sum, and by
            (number of ranks) / factor after it.
        op: Average (the default), Sum, Min, Max or Product. With Adasum, each rank applies its
            local gradients, and the resulting updates of the variables are reduced by Adasum.
            `groups` and 16-bit compression then have no effect, and sparse gradients are not
            reduced.
        backward_passes_per_step: the number of gradients to sum before the ranks reduce the sums
            and the optimizer runs a step. Not for the JAX backend: use the optimizer's
            gradient_accumulation_steps.
        average_aggregated_gradients: divide the sums by the number of passes.
        num_groups: an older name of `groups`, for a number.
        groups: the number of groups of gradients, each reduced all or nothing; or lists of
            variables, one list per group.
        process_set: the ranks that take part; others train alone.
        scale_local_gradients: divide the gradients of local variables by the number of ranks; not
            with op=Adasum.

    Returns:
        The optimizer, with an additional method register_local_var(variable).

    Raises:
        ValueError: an argument is invalid, or hvd.init() was not called.
        NotImplementedError: the combination is not supported: gradient_predivide_factor without
            op=Average; lossy compression with an op other than Average and Sum; op=Adasum with a
            LossScaleOptimizer or use_ema.
    """
    if isinstance(optimizer, _Distributed | DistributedLegacy):
        raise ValueError("the optimizer is already a DistributedOptimizer")
    if not is_optimizer(optimizer):
        name = "tf_keras" if IS_LEGACY else "Keras"
        raise ValueError(
            f"hvd.DistributedOptimizer() takes an optimizer of {name}, not {optimizer!r}"
        )
    step = make_step(
        passes=backward_passes_per_step,
        average_passes=average_aggregated_gradients,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    if op == Adasum:
        check_options(optimizer, compression)
    cls = type(optimizer)
    # Keep the name of the plain class, which saved models refer to.
    members = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    extension = DistributedLegacy if IS_LEGACY else _Distributed
    optimizer.__class__ = type(cls.__name__, (extension, cls), members)
    optimizer._hvd_step = step
    optimizer._hvd_passes = backward_passes_per_step
    optimizer._hvd_op = op
    if backend() == "tensorflow" and not IS_LEGACY:
        _turn_off_xla()
    return optimizer


def is_optimizer(value: Any) -> bool:
    """Return whether a value is a Keras optimizer."""
    kinds = [keras.optimizers.Optimizer]
    if IS_LEGACY:
        kinds += [keras.optimizers.legacy.Optimizer]
    return isinstance(value, tuple(kinds))


def PartialDistributedOptimizer(  # noqa: N802 (Horovod's name)
    optimizer: Any, *args: Any, local_layers: Any = None, **kwargs: Any
) -> Any:
    """Make a Keras optimizer apply gradients reduced over the ranks, except those of some layers.

    Args:
        optimizer: as for DistributedOptimizer().
        *args: as for DistributedOptimizer().
        local_layers: a layer or a list of layers whose gradients are not reduced. They need not be
            built.
        **kwargs: as for DistributedOptimizer(). With scale_local_gradients=True, the default, local
            gradients are divided by the number of ranks, so that they have the same scale as
            averages.

    Returns:
        As for DistributedOptimizer().

    Raises:
        ValueError: an argument is invalid, or hvd.init() was not called.
    """
    layers = tuple(_layers(local_layers))
    distributed = DistributedOptimizer(optimizer, *args, **kwargs)
    distributed._hvd_step = _Partial(distributed._hvd_step, layers)
    return distributed


class _Partial:
    """A step that does not reduce the gradients of some layers; see Step."""

    def __init__(self, step: Step, layers: tuple[Any, ...]) -> None:
        self._step = step
        self._layers = layers
        self.register_local = step.register_local
        self.outside_of_graph = step.outside_of_graph

    def __call__(self, gradients: list[Any], variables: Sequence[Any], apply: Apply) -> Any:
        for layer in self._layers:  # the layer's variables may be new
            self._step.register_local(layer.trainable_variables)
        return self._step(gradients, variables, apply)


def _layers(given: Any) -> Iterable[Any]:
    layers = [] if given is None else [given] if isinstance(given, keras.layers.Layer) else given
    for layer in layers:
        if not isinstance(layer, keras.layers.Layer):
            raise ValueError(f"local_layers= takes layers of Keras, not {layer!r}")
        yield layer


@functools.cache
def _turn_off_xla() -> None:
    """Make models with a DistributedOptimizer create graphs that XLA does not compile.

    XLA does not support our operations, but Keras selects it on any accelerator. The optimizer is
    not consulted before the graph is created, so this must be set in the model.
    """
    owner = next(cls for cls in keras.Model.__mro__ if "make_train_function" in vars(cls))
    plain = owner.make_train_function

    @functools.wraps(plain)
    def make_train_function(self: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self.optimizer, _Distributed):
            self.jit_compile = False
        return plain(self, *args, **kwargs)

    owner.make_train_function = make_train_function
