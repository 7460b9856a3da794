"""DistributedGradientTape: a tf.GradientTape that reduces gradients over the ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horoscale.common.basics import Average
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.tensorflow.compression import AnyCompressor, Compression
from horoscale.tensorflow.gradients import GradientReduction, chosen_groups


class _DistributedTape(tf.GradientTape):  # type: ignore[misc]
    """The class inserted before that of the user's tape."""

    _reduction: GradientReduction

    def register_local_source(self, source: Any) -> None:
        """Exclude the gradient of this variable from the reduction."""
        self._reduction.register_local([source])

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
        use_generic_names: bool = False,
    ) -> Any:
        """Run tf.GradientTape.gradient() and reduce the result over the ranks.

        `use_generic_names` is accepted for compatibility with Horovod and has no effect.
        """
        gradients = super().gradient(target, sources, output_gradients, unconnected_gradients)
        flat = tf.nest.flatten(gradients)
        reduced = self._reduction(flat, tf.nest.flatten(sources))
        return tf.nest.pack_sequence_as(gradients, reduced)


def DistributedGradientTape(  # noqa: N802 (Horovod's name)
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompressor = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Return a tape whose gradient() also reduces the gradients over the ranks.

    Args:
        gradtape: the tape that has recorded the computation.
        device_dense: the device of the operation for tensors.
        device_sparse: the device of the operation for tf.IndexedSlices.
        compression: the compression of gradients.
        sparse_as_dense: reduce tf.IndexedSlices as tensors.
        op: Average (the default), Sum, Min, Max, Product or Adasum.
        gradient_predivide_factor: with op=Average, divide by this factor before the sum, and by
            (number of ranks) / factor after it.
        num_groups: an older name of `groups`, for a number.
        groups: the number of groups of gradients, each reduced all or nothing; or lists of
            variables, one list per group.
        process_set: the ranks that take part.
        scale_local_gradients: divide the gradients of local sources by the number of ranks.

    Returns:
        A tape of the same class as `gradtape`, with a method register_local_source(variable).

    Raises:
        ValueError: an argument is invalid, or hvd.init() was not called.
        NotImplementedError: gradient_predivide_factor without op=Average.
    """
    cls = type(gradtape)
    distributed: Any = type(cls.__name__, (_DistributedTape, cls), {"__module__": cls.__module__})
    tape = distributed.__new__(distributed)
    tape.__dict__ = gradtape.__dict__  # both tapes share one recording
    tape._reduction = GradientReduction(
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
    return tape


def PartialDistributedGradientTape(  # noqa: N802 (Horovod's name)
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: AnyCompressor = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Return a DistributedGradientTape() that does not reduce the gradients of some layers.

    `local_layers` is a layer or a list of layers. The other arguments are those of
    DistributedGradientTape().
    """
    tape = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    layers = local_layers if isinstance(local_layers, list | tuple) else [local_layers]
    for layer in layers:
        if layer is not None:
            tape._reduction.register_local(layer.trainable_weights)
    return tape
