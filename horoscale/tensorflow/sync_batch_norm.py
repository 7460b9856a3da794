"""SyncBatchNormalization: batch normalization with the statistics of all ranks' batches."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horoscale.common.basics import Sum
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.common.which_keras import IS_LEGACY, keras
from horoscale.tensorflow.ops import allreduce


class SyncBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """keras.layers.BatchNormalization over the batches of all ranks, whose sizes may differ.

    In training every rank must run the layer's forward and backward pass.
    """

    def __init__(
        self, *args: Any, process_set: ProcessSet = global_process_set, **kwargs: Any
    ) -> None:
        """Take the arguments of keras.layers.BatchNormalization, and the ranks that take part."""
        if IS_LEGACY:
            kwargs["fused"] = False  # the fused kernel would compute the statistics itself
        super().__init__(*args, **kwargs)
        self._process_set = process_set

    if IS_LEGACY:

        def _calculate_mean_and_var(
            self, inputs: Any, reduction_axes: Any, keep_dims: bool, mask: Any = None
        ) -> tuple[Any, Any]:
            """Return the mean and variance. Called by tf_keras."""
            axes = [axis % len(inputs.shape) for axis in reduction_axes]
            mean, variance = self._statistics(inputs, axes, mask)
            if not keep_dims:
                return mean, variance
            shape = [1 if i in axes else -1 for i in range(len(inputs.shape))]
            return tf.reshape(mean, shape), tf.reshape(variance, shape)

    else:

        def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
            """Return the mean and variance. Called by Keras 3."""
            return self._statistics(inputs, self._reduction_axes, mask)

    def _statistics(self, inputs: Any, axes: list[int], mask: Any) -> tuple[Any, Any]:
        """Return the mean and variance over all ranks' examples, without the dimensions `axes`."""
        wide = tf.cast(inputs, tf.float64 if inputs.dtype == tf.float64 else tf.float32)
        weights = tf.ones_like(wide)
        if mask is not None:
            shape = tf.concat(
                [tf.shape(mask), tf.ones([tf.rank(wide) - tf.rank(mask)], tf.int32)], 0
            )
            weights *= tf.reshape(tf.cast(mask, wide.dtype), shape)
        count = tf.reduce_sum(weights, axes)
        total = tf.reduce_sum(wide * weights, axes)
        # In two passes, because E[x^2] - E[x]^2 would lose precision if the mean is large.
        sums = self._over_ranks(tf.stack([count, total]))
        count, mean = sums[0], sums[1] / sums[0]
        shape = [-1 if i not in axes else 1 for i in range(len(inputs.shape))]
        centred = (wide - tf.reshape(mean, shape)) * weights
        variance = self._over_ranks(tf.reduce_sum(centred * centred, axes)) / count
        return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)

    def _over_ranks(self, values: tf.Tensor) -> tf.Tensor:
        return allreduce(values, op=Sum, process_set=self._process_set)
