"""tf_keras (Keras 2) on ranks with TF_USE_LEGACY_KERAS=1: like test_keras.py."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if os.environ.get("TF_USE_LEGACY_KERAS") != "1":
    pytest.skip("for TF_USE_LEGACY_KERAS=1", allow_module_level=True)
tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("tf_keras")

import horoscale.tensorflow.keras as hvd  # noqa: E402
from horoscale import tensorflow as of_tensorflow  # noqa: E402
from horoscale.trackers import Tracker  # noqa: E402

BATCH = 4  # per rank
BATCHES = 3
EPOCHS = 2

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "adam": lambda: keras.optimizers.Adam(0.01, clipnorm=0.5),
    "legacy-sgd": lambda: keras.optimizers.legacy.SGD(0.1, momentum=0.9),
    "legacy-adam": lambda: keras.optimizers.legacy.Adam(0.01, clipnorm=0.5),
}
BOTH = pytest.mark.parametrize("kind", ["adam", "legacy-adam"])


class Written:
    """The losses that a tracker writes, by step."""

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        if "loss" in scalars:
            self.losses[step] = scalars["loss"]

    def close(self, failed: bool) -> None:
        pass


def make_model(seed: int = 1) -> Any:
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(7, activation="tanh"),
            keras.layers.Dense(2),
        ]
    )


def data() -> tuple[np.ndarray, np.ndarray]:
    """By batch, rank and row of the batch, for all ranks."""
    inputs = np.random.default_rng(7).normal(size=(BATCHES, hvd.size(), BATCH, 5))
    return inputs.astype(np.float32), np.stack([inputs.sum(-1), inputs[..., 0]], -1)


def fit(model: Any, optimizer: Any, one: int | None, **options: Any) -> Any:
    """Train on one rank's part of each batch, or on the whole (None)."""
    if optimizer is not None:
        model.compile(optimizer=optimizer, loss="mse")
    part = slice(None) if one is None else slice(one, one + 1)
    inputs, targets = (array[:, part] for array in data())
    options = {"epochs": EPOCHS} | options
    return model.fit(
        inputs.reshape(-1, 5),
        targets.reshape(-1, 2),
        batch_size=BATCH * inputs.shape[1],
        shuffle=False,
        verbose=0,
        **options,
    )


def assert_same(model: Any, expected: Any, tolerance: float = 1e-5) -> None:
    for one, other in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_fit_gives_the_weights_of_one_process(kind: str) -> None:
    model, expected = make_model(), make_model()
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS[kind]())
    assert type(optimizer).__name__ == type(OPTIMIZERS[kind]()).__name__
    fit(model, optimizer, hvd.rank())
    fit(expected, OPTIMIZERS[kind](), None)
    assert_same(model, expected)
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedOptimizer(optimizer)


@BOTH
def test_the_binding_of_tensorflow_takes_them_too(kind: str) -> None:
    model, expected = make_model(), make_model()
    fit(model, of_tensorflow.DistributedOptimizer(OPTIMIZERS[kind](), groups=2), hvd.rank())
    fit(expected, OPTIMIZERS[kind](), None)
    assert_same(model, expected)


@pytest.mark.parametrize("kind", ["sgd", "legacy-sgd"])
def test_passes_of_a_step(kind: str) -> None:
    model, expected = make_model(), make_model()
    optimizer = hvd.DistributedOptimizer(
        OPTIMIZERS[kind](), backward_passes_per_step=BATCHES, average_aggregated_gradients=True
    )
    fit(model, optimizer, hvd.rank())
    expected.compile(optimizer=OPTIMIZERS[kind](), loss="mse")
    inputs, targets = data()
    for _ in range(EPOCHS):
        expected.train_on_batch(inputs.reshape(-1, 5), targets.reshape(-1, 2))
    assert_same(model, expected)
    assert int(optimizer.iterations) == EPOCHS


@pytest.mark.parametrize("is_inside", [True, False], ids=["inside", "around"])
@BOTH
def test_loss_scaling(kind: str, is_inside: bool) -> None:
    """If the gradients of one rank are not finite, all ranks skip the step."""
    scaled = keras.mixed_precision.LossScaleOptimizer
    if is_inside:
        optimizer = hvd.DistributedOptimizer(scaled(OPTIMIZERS[kind]()))
    else:
        optimizer = scaled(hvd.DistributedOptimizer(OPTIMIZERS[kind]()))
    model, expected = make_model(), make_model()
    fit(model, optimizer, hvd.rank())
    fit(expected, OPTIMIZERS[kind](), None)
    assert_same(model, expected)
    inputs = np.full((1, 5), np.inf if hvd.rank() == 0 else 1.0, np.float32)
    model.train_on_batch(inputs, np.ones((1, 2)))
    assert_same(model, expected)


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5")
@pytest.mark.parametrize(
    ("kind", "ending"),
    # tf_keras's other format omits the state of its legacy optimizers.
    [("adam", "keras"), ("adam", "h5"), ("legacy-adam", "h5")],
)
def test_a_saved_model_goes_on_as_if_it_had_not_stopped(
    kind: str, ending: str, tmp_path: Path
) -> None:
    straight, stopped = make_model(), make_model()
    fit(straight, hvd.DistributedOptimizer(OPTIMIZERS[kind]()), hvd.rank(), epochs=4)
    fit(stopped, hvd.DistributedOptimizer(OPTIMIZERS[kind]()), hvd.rank(), epochs=2)
    path = tmp_path / f"stopped.{ending}"
    stopped.save(path)
    resumed = hvd.load_model(path)
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedOptimizer(resumed.optimizer)
    assert int(resumed.optimizer.iterations) == 2 * BATCHES
    fit(resumed, None, hvd.rank(), epochs=2)
    assert_same(resumed, straight, tolerance=0)
    assert type(keras.models.load_model(path).optimizer) is type(OPTIMIZERS[kind]())


@BOTH
def test_callbacks(kind: str, tmp_path: Path) -> None:
    root = hvd.size() - 1
    model, expected = make_model(seed=1 + hvd.rank()), make_model(seed=1 + root)
    best = tmp_path / "best.keras"
    written = Written()
    history = fit(
        model,
        hvd.DistributedOptimizer(OPTIMIZERS[kind]()),
        hvd.rank(),
        epochs=4,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(root),
            hvd.callbacks.MetricAverageCallback(),
            hvd.callbacks.LearningRateScheduleCallback(0.01, lambda epoch: 0.5**epoch),
            hvd.callbacks.BestModelCheckpoint(monitor="loss", filepath=str(best)),
            hvd.callbacks.TrackerCallback(Tracker(lambda: written)),
        ],
    ).history
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 * 0.5**epoch)
    one = fit(expected, OPTIMIZERS[kind](), None, epochs=4, callbacks=[schedule]).history
    assert_same(model, expected)
    np.testing.assert_allclose(history["loss"], one["loss"], rtol=1e-4)
    np.testing.assert_allclose(history["lr"], [0.01, 0.005, 0.0025, 0.00125], rtol=1e-5)
    assert best.exists() == (hvd.rank() == 0)
    losses = dict(zip(range(BATCHES, 5 * BATCHES, BATCHES), history["loss"], strict=True))
    assert written.losses == (losses if hvd.rank() == 0 else {})


@BOTH
def test_optimizers_begin_with_the_roots_slots(kind: str) -> None:
    model = make_model()
    alone = OPTIMIZERS[kind]()
    if hvd.rank() == 0:
        fit(model, alone, None, epochs=1)
    optimizer = hvd.DistributedOptimizer(alone)
    fit(
        model,
        optimizer,
        hvd.rank(),
        epochs=1,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
    )
    assert int(optimizer.iterations) == 2 * BATCHES
    values = [one.numpy() for one in [*model.weights, *optimizer.variables()]]
    for others in zip(*hvd.allgather_object(values), strict=True):
        for other in others:
            np.testing.assert_array_equal(other, others[0])


def test_local_layers_are_left_to_the_ranks(need_ranks: None) -> None:
    model = make_model()
    optimizer = hvd.PartialDistributedOptimizer(
        OPTIMIZERS["sgd"](), local_layers=model.layers[1], scale_local_gradients=False
    )
    fit(model, optimizer, hvd.rank(), epochs=1)
    everybodys = hvd.allgather_object([layer.get_weights() for layer in model.layers])
    np.testing.assert_array_equal(everybodys[0][0][0], everybodys[-1][0][0])
    assert not np.array_equal(everybodys[0][1][0], everybodys[-1][1][0])


def test_values() -> None:
    ranks = hvd.size()
    assert hvd.allreduce(float(hvd.rank())) == (ranks - 1) / 2
    np.testing.assert_array_equal(hvd.allreduce(tf.ones(3), op=hvd.Sum), np.full(3, ranks))
    np.testing.assert_array_equal(hvd.allgather(tf.Variable(hvd.rank())), np.arange(ranks))
    variable = tf.Variable([1.0 + hvd.rank()])
    hvd.broadcast_variables([variable], root_rank=ranks - 1)
    np.testing.assert_array_equal(variable, [ranks])


def test_batch_normalization_over_the_ranks() -> None:
    layer, one = of_tensorflow.SyncBatchNormalization(), keras.layers.BatchNormalization()
    inputs = np.random.default_rng(0).normal(size=(hvd.size() * 6, 3)).astype(np.float32)
    whole = one(inputs, training=True)
    own = layer(inputs[6 * hvd.rank() : 6 * (hvd.rank() + 1)], training=True)
    np.testing.assert_allclose(own, whole[6 * hvd.rank() : 6 * (hvd.rank() + 1)], atol=1e-5)
    np.testing.assert_allclose(layer.moving_mean, one.moving_mean, atol=1e-6)


def test_what_is_no_optimizer_of_tf_keras() -> None:
    for other in ("sgd", object()):
        with pytest.raises(ValueError, match="takes an optimizer of tf_keras"):
            hvd.DistributedOptimizer(other)
    scaled = keras.mixed_precision.LossScaleOptimizer(
        hvd.DistributedOptimizer(OPTIMIZERS["adam"](), backward_passes_per_step=2)
    )
    with pytest.raises(ValueError, match="the other way round"):
        fit(make_model(), scaled, hvd.rank())
