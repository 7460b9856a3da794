"""Trains a small network on scikit-learn's handwritten digits with fit(), on any number of ranks.

    horoscalerun -np 2 python examples/keras_digits.py --backend torch

The global batch is the same for any number of ranks, and each rank processes its share. Rank 0
saves the best model, and the second half of the epochs continues from it, as after an interruption.
At the end rank 0 prints the accuracy on held-out digits.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=["tensorflow", "torch", "jax"], default="tensorflow")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument(
        "--global-batch", type=int, default=96, help="samples of all ranks per step"
    )
    parser.add_argument("--checkpoint", type=Path, default=Path("digits.keras"))
    arguments = parser.parse_args()

    os.environ["KERAS_BACKEND"] = arguments.backend  # read when Keras is imported
    import keras

    import horoscale.keras as hvd

    hvd.init()
    keras.utils.set_random_seed(hvd.rank())  # different weights, until ranks receive rank 0's
    images, labels = load_digits(return_X_y=True)
    images = images.astype("float32") / 16.0
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=0.2, random_state=0, stratify=labels
    )
    # All ranks have the same number of batches: a rank with one more would wait forever.
    batch = arguments.global_batch // hvd.size()
    rows = len(train_x) // arguments.global_batch * batch
    own = np.arange(hvd.rank(), len(train_x), hvd.size())[:rows]

    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(0.005)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

    def train(first_epoch: int, epochs: int) -> None:
        model.fit(
            train_x[own],
            train_y[own],
            batch_size=batch,
            initial_epoch=first_epoch,
            epochs=epochs,
            verbose=0,
            callbacks=[
                hvd.callbacks.BroadcastGlobalVariablesCallback(0),
                hvd.callbacks.MetricAverageCallback(),
                hvd.callbacks.LearningRateWarmupCallback(0.005, warmup_epochs=2),
                hvd.callbacks.BestModelCheckpoint("loss", filepath=str(arguments.checkpoint)),
            ],
        )

    half = arguments.epochs // 2
    train(0, half)
    hvd.barrier()  # rank 0 has written the file
    if hvd.rank() == 0:  # the others receive the weights and the optimizer's state from it
        model = hvd.load_model(arguments.checkpoint)
    train(half, arguments.epochs)

    right = np.argmax(model.predict(test_x, verbose=0), axis=1) == test_y
    if hvd.rank() == 0:
        print(f"accuracy on held-out digits: {right.mean():.4f}")


if __name__ == "__main__":
    main()
