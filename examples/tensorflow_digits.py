"""Trains a small network on scikit-learn's handwritten digits with a tape, on any number of ranks.

    horoscalerun -np 2 python examples/tensorflow_digits.py

The global batch is the same for any number of ranks, and each rank processes its share. At the end
rank 0 prints the accuracy on held-out digits.
"""

from __future__ import annotations

import argparse

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import horoscale.tensorflow as hvd


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument(
        "--global-batch", type=int, default=96, help="samples of all ranks per step"
    )
    arguments = parser.parse_args()

    hvd.init()
    keras.utils.set_random_seed(hvd.rank())  # different weights, until ranks receive rank 0's
    images, labels = load_digits(return_X_y=True)
    images = images.astype("float32") / 16.0
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=0.2, random_state=0, stratify=labels
    )
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    optimizer = keras.optimizers.Adam(0.005)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    hvd.broadcast_variables([*model.variables, *optimizer.variables], root_rank=0)

    @tf.function(reduce_retracing=True)
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    whole_batches = len(train_x) - len(train_x) % arguments.global_batch
    for epoch in range(arguments.epochs):
        order = np.random.default_rng(epoch).permutation(len(train_x))[:whole_batches]
        for batch in order.reshape(-1, arguments.global_batch):
            own = batch[hvd.rank() :: hvd.size()]
            step(tf.constant(train_x[own]), tf.constant(train_y[own]))

    right = np.argmax(model(test_x), axis=1) == test_y
    if hvd.rank() == 0:
        print(f"accuracy on held-out digits: {right.mean():.4f}")


if __name__ == "__main__":
    main()
