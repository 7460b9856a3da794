"""DistributedGradientTape: a tf.GradientTape whose gradients are those of all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horoscale.common.basics import Average
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.tensorflow.compression import AnyCompressor, Compression
from horoscale.tensorflow.gradients import GradientReduction, chosen_groups


class _DistributedTape(tf.GradientTape):  # type: ignore[misc]
    """What the class of the user's tape is extended by."""

    _reduction: GradientReduction

    def register_local_source(self, source: Any) -> None:
        """Leave the gradient of this variable to each rank."""
        self._reduction.register_local([source])

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
        use_generic_names: bool = False,
    ) -> Any:
        """Do tf.GradientTape.gradient() and reduce the result over the ranks.

        `use_generic_names` is accepted as Horovod's; names don't depend on the model's here.
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
    """Return the tape as one whose gradient() also reduces the gradients over the ranks.

    Args:
        gradtape: the tape that has recorded the computation.
        device_dense: where the operation is placed for tensors,
        device_sparse: and for tf.IndexedSlices.
        compression: how gradients travel.
        sparse_as_dense: reduce tf.IndexedSlices as tensors.
        op: Average (the default), Sum, Min, Max or Product.
        gradient_predivide_factor: divide by it before the sum and by the rest after it.
        num_groups: older name of `groups`, a number.
        groups: how many groups of gradients are reduced all or nothing, or lists of the variables
            that make one.
        process_set: the ranks that take part.
        scale_local_gradients: divide the gradients of local sources by the number of ranks.

    Returns:
        A tape of the class of `gradtape`, with register_local_source(variable) beside.

    Raises:
        ValueError: an argument is invalid, or hvd.init() was not called.
    """
    cls = type(gradtape)
    distributed: Any = type(cls.__name__, (_DistributedTape, cls), {"__module__": cls.__module__})
    tape = distributed.__new__(distributed)
    tape.__dict__ = gradtape.__dict__  # the same recording, under both
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
    """Return a DistributedGradientTape() that leaves the gradients of some layers to each rank.

    `local_layers` is a layer or a list of layers; the rest is as for DistributedGradientTape().
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
