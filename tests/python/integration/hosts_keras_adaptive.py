"""Adaptive compression in frameworks that wait for operations in their own ways, in a rank.

Arguments: "slow" if the ranks are on separate hosts with a slow network, "near" if they share one.
The variable KERAS_BACKEND selects the framework.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import horoscale.keras as hvd

IS_SLOW = sys.argv[1] == "slow"
STEPS, BATCH, WIDTH = 20, 8, 256  # a matrix of 0.25 MiB


def adaptive() -> dict[str, Any]:
    """The metrics of adaptive tensors."""
    tensors: dict[str, Any] = hvd.metrics()["process_sets"]["0"]["adaptive"]
    return tensors


def model() -> Any:
    """A model that is the same on all ranks."""
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [keras.Input((WIDTH,)), keras.layers.Dense(WIDTH), keras.layers.Dense(1)]
    )


def data() -> tuple[np.ndarray, np.ndarray]:
    """This rank's batches."""
    generator = np.random.default_rng(hvd.rank())
    x = generator.standard_normal((STEPS * BATCH, WIDTH), np.float32)
    return x, x.sum(1, keepdims=True)


def fit() -> Any:
    """Train by Keras."""
    network = model()
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1e-3), compression=hvd.Compression.adaptive(0.1)
    )
    network.compile(optimizer=optimizer, loss="mse")
    network.fit(*data(), batch_size=BATCH, shuffle=False, verbose=0)
    return network


def tape(in_graph: bool) -> Any:
    """Train by TensorFlow."""
    import tensorflow as tf

    import horoscale.tensorflow as of_tensorflow

    network = model()
    x, y = data()

    def step(inputs: Any, targets: Any) -> None:
        with tf.GradientTape() as plain:
            loss = tf.reduce_mean(tf.square(network(inputs) - targets))
        distributed = of_tensorflow.DistributedGradientTape(
            plain, compression=of_tensorflow.Compression.adaptive(0.1)
        )
        gradients = distributed.gradient(loss, network.trainable_variables)
        for variable, gradient in zip(network.trainable_variables, gradients, strict=True):
            variable.assign_sub(1e-3 * gradient)

    run = tf.function(step) if in_graph else step
    for i in range(0, len(x), BATCH):
        run(tf.constant(x[i : i + BATCH]), tf.constant(y[i : i + BATCH]))
    return network


def check(train: Callable[[], Any]) -> None:
    """On a slow network something is compressed, and the ranks' weights are the same.

    Each training is a job of its own, because a job takes long to notice that its steps have other
    names.
    """
    hvd.init()
    for one in train().get_weights():
        np.testing.assert_array_equal(hvd.broadcast(one, root_rank=0), one)
    tensors = adaptive()
    if IS_SLOW:
        assert any(one["ratio"] > 1 for one in tensors.values()), tensors
    else:
        assert tensors == {}
    hvd.shutdown()


def main() -> None:
    """Run all checks."""
    check(fit)
    if IS_SLOW and keras.backend.backend() == "tensorflow":
        check(lambda: tape(in_graph=True))
        check(lambda: tape(in_graph=False))


main()
