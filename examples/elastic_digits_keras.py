"""Trains on scikit-learn's digits with fit() while ranks die, as accurately as if none did.

    horoscalerun -np 3 --min-np 1 python examples/elastic_digits_keras.py --kill-every 20

With --kill-every N, the last rank kills itself after N batches, unless it is the only one; the
launcher starts a replacement, which joins when it is ready. --backend selects the Keras backend.
"""

from __future__ import annotations

import argparse
import os
import signal
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--backend", choices=["tensorflow", "torch", "jax"], default="torch")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--global-batch", type=int, default=96, help="samples of all ranks per step")
parser.add_argument("--kill-every", type=int, default=0, metavar="N")
arguments = parser.parse_args()

os.environ["KERAS_BACKEND"] = arguments.backend  # read when Keras is imported
import keras  # noqa: E402

import horoscale.keras as hvd  # noqa: E402

hvd.init()
keras.utils.set_random_seed(1)
images, labels = load_digits(return_X_y=True)
split = train_test_split(images.astype("float32") / 16, labels, test_size=0.2, random_state=0)
train_x, test_x, train_y, test_y = split

model = keras.Sequential(
    [keras.Input((64,)), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)]
)
model.compile(
    optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(0.005)),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
state = hvd.elastic.KerasState(model, epoch=0, batch=0)


class Death(keras.callbacks.Callback):
    """Kills this process after some batches, if it is the last rank and not the only one."""

    def __init__(self) -> None:
        super().__init__()
        self.left = arguments.kill_every

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.left -= 1
        if self.left < 0 < arguments.kill_every and 1 < hvd.size() == hvd.rank() + 1:
            os.kill(os.getpid(), signal.SIGKILL)


callbacks = [
    hvd.elastic.UpdateBatchStateCallback(state),
    hvd.elastic.UpdateEpochStateCallback(state),
    Death(),
    hvd.elastic.CommitStateCallback(state),
]


def own_rows() -> np.ndarray:
    """Yield this rank's share of the remaining batches of the epoch."""
    order = np.random.default_rng(state.epoch).permutation(len(train_x))
    batches = len(order) // arguments.global_batch
    global_batches = order[: batches * arguments.global_batch].reshape(batches, -1)
    share = arguments.global_batch // hvd.size()
    begin = hvd.rank() * share
    return global_batches[state.batch :, begin : begin + share].ravel()


@hvd.elastic.run
def train(state: hvd.elastic.KerasState) -> None:
    while state.epoch < arguments.epochs:
        rows = own_rows()
        model.fit(
            train_x[rows],
            train_y[rows],
            batch_size=arguments.global_batch // hvd.size(),
            shuffle=False,
            verbose=0,
            callbacks=callbacks,
        )
        if hvd.rank() == 0:
            print(f"epoch {state.epoch} on {hvd.size()} ranks", flush=True)


train(state)
if hvd.rank() == 0:
    right = np.argmax(model.predict(test_x, verbose=0), axis=1) == test_y
    print(f"accuracy {right.mean():.3f}", flush=True)
