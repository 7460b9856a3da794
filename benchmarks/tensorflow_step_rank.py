"""One rank of one way of training in TensorFlow, for benchmarks/tensorflow_step.py.

The benchmark starts it and sends it measurement orders.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from orders import serve, times

WARM_UP = 3
WORDS, TOKENS, WIDTH = 2000, 64, 128


def perceptron() -> keras.Model:
    """27 MB of gradients in 8 tensors."""
    widths = [1024, 2048, 2048, 256]
    hidden = [layers.Dense(width, activation="relu") for width in widths[1:]]
    return keras.Sequential([keras.Input(widths[:1]), *hidden, layers.Dense(10)])


def convolutions() -> keras.Model:
    """Eight layers with batch norm, like the start of a ResNet; 5 MB of gradients in 34 tensors."""
    channels = [3, 32, 32, 64, 64, 128, 128, 256, 256]
    network = keras.Sequential([keras.Input((32, 32, 3))])
    for index, (_, after) in enumerate(pairwise(channels)):
        network.add(layers.Conv2D(after, 3, padding="same"))
        network.add(layers.BatchNormalization())
        network.add(layers.ReLU())
        if index % 2:
            network.add(layers.MaxPool2D(2))
    network.add(layers.Flatten())
    network.add(layers.Dense(10))
    return network


def transformer() -> keras.Model:
    """A minimal transformer: 4 layers; 5 MB of gradients in 67 tensors, one sparse."""
    tokens = keras.Input((TOKENS,), dtype="int32")
    hidden = layers.Embedding(WORDS, WIDTH)(tokens)
    for _ in range(4):
        normal = layers.LayerNormalization()(hidden)
        hidden += layers.MultiHeadAttention(4, WIDTH // 4)(normal, normal)
        normal = layers.LayerNormalization()(hidden)
        hidden += layers.Dense(WIDTH)(layers.Dense(4 * WIDTH, activation="relu")(normal))
    pooled = layers.GlobalAveragePooling1D()(hidden)
    return keras.Model(tokens, layers.Dense(WORDS)(pooled))


class Task(NamedTuple):
    """A model and the inputs of a step."""

    model: Callable[[], keras.Model]
    inputs: Callable[[np.random.Generator], np.ndarray]


TASKS = {
    "perceptron": Task(perceptron, lambda random: random.normal(size=(64, 1024))),
    "convolutions": Task(convolutions, lambda random: random.normal(size=(16, 32, 32, 3))),
    "transformer": Task(transformer, lambda random: random.integers(0, WORDS, (8, TOKENS))),
}

Step = Callable[[], object]


class Way:
    """How gradients are combined: here, not at all."""

    replicas = 1

    def scope(self) -> contextlib.AbstractContextManager[object]:
        """The scope for creating models and optimizers."""
        return contextlib.nullcontext()

    def begin_alike(self, variables: list[Any]) -> None:
        """Give all ranks the same values."""

    def tape(self, tape: tf.GradientTape) -> tf.GradientTape:
        return tape

    def optimizer(self, optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
        """The input for fit()."""
        return optimizer

    def run(self, step: Step) -> object:
        return step()


class Mirrored(Way):
    """MultiWorkerMirroredStrategy, in which Keras' optimizers sum the gradients."""

    def __init__(self) -> None:
        workers = os.environ["WORKERS"].split(",")
        task = {"type": "worker", "index": int(os.environ["RANK"])}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
        self.strategy = tf.distribute.MultiWorkerMirroredStrategy()
        self.replicas = self.strategy.num_replicas_in_sync

    def scope(self) -> contextlib.AbstractContextManager[object]:
        return self.strategy.scope()

    def run(self, step: Step) -> object:
        return self.strategy.run(step)


class Horoscale(Way):
    """Ours: the tape in loops, the optimizer in fit()."""

    def __init__(self) -> None:
        import horoscale.tensorflow as hvd

        hvd.init()
        self.hvd = hvd

    def begin_alike(self, variables: list[Any]) -> None:
        self.hvd.broadcast_variables(variables, root_rank=0)

    def tape(self, tape: tf.GradientTape) -> tf.GradientTape:
        return self.hvd.DistributedGradientTape(tape)

    def optimizer(self, optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
        return self.hvd.DistributedOptimizer(optimizer)


WAYS = {"one": Way, "alone": Way, "mirrored": Mirrored, "horoscale": Horoscale}


def make_step(way: Way, task: Task, mode: str) -> Callable[[int], list[float]]:
    """Return a function that runs some steps and returns how long each took."""
    inputs = task.inputs(np.random.default_rng(0))
    inputs = inputs.astype("int32" if inputs.dtype.kind == "i" else "float32")
    targets = np.arange(len(inputs), dtype="int32") % 10
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with way.scope():
        model = task.model()
        optimizer = keras.optimizers.SGD(1e-3, momentum=0.9)
        if mode == "fit":
            optimizer = way.optimizer(optimizer)
        optimizer.build(model.trainable_variables)
    way.begin_alike(model.variables)
    if mode == "fit":
        model.compile(optimizer, loss_of, jit_compile=False)
        return lambda steps: times_of_fit(model, inputs, targets, steps)

    x, y = tf.constant(inputs), tf.constant(targets)

    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True)) / way.replicas
        gradients = way.tape(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    def whole() -> object:
        return way.run(step)

    run = tf.function(whole) if mode == "function" else whole
    return lambda steps: times(run, steps)


class Clock(keras.callbacks.Callback):
    """Records when each step ends."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        self.ends.append(time.perf_counter())


def times_of_fit(
    model: keras.Model, inputs: np.ndarray, targets: np.ndarray, steps: int
) -> list[float]:
    """The times between the ends of steps, which exclude the start of the first one."""
    clock = Clock()
    data = tf.data.Dataset.from_tensors((inputs, targets)).cache().repeat(steps + 1)
    model.fit(data, verbose=0, callbacks=[clock])
    return [after - before for before, after in pairwise(clock.ends)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("implementation", choices=WAYS)
    parser.add_argument("socket", help="address of the benchmark")
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    way = WAYS[arguments.implementation]()
    steps: dict[tuple[str, str], Callable[[int], list[float]]] = {}

    def carry_out(task: str, mode: str, count: int) -> list[float]:
        if (task, mode) not in steps:
            steps.clear()  # one model at a time
            steps[task, mode] = make_step(way, TASKS[task], mode)
        steps[task, mode](WARM_UP)
        return steps[task, mode](count)

    serve(arguments.socket, carry_out)


if __name__ == "__main__":
    main()
