"""Keras on ranks, on the backend of KERAS_BACKEND: fit() gives the weights of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")

from support.event_files import curves  # noqa: E402

import horoscale.keras as hvd  # noqa: E402
from horoscale.trackers import TensorBoard  # noqa: E402

# Keras's own, with its PyTorch backend.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

BATCH = 4  # per rank
BATCHES = 3
EPOCHS = 2
BACKEND = keras.backend.backend()

OPTIMIZERS = {
    "sgd": lambda **o: keras.optimizers.SGD(0.1, **o),
    "momentum": lambda **o: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True, **o),
    "adam": lambda **o: keras.optimizers.Adam(0.01, **o),
    "adamw": lambda **o: keras.optimizers.AdamW(0.01, **o),
    "rmsprop": lambda **o: keras.optimizers.RMSprop(0.01, **o),
}


def make_model(seed: int = 1) -> Any:
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(7, activation="tanh", name="first"),
            keras.layers.Dense(2, name="last"),
        ]
    )


def data(ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """By batch, rank and row of the batch, for all ranks."""
    generator = np.random.default_rng(7)
    inputs = generator.normal(size=(BATCHES, ranks, BATCH, 5)).astype(np.float32)
    return inputs, np.stack([inputs.sum(-1), inputs[..., 0]], -1)


def fit(model: Any, optimizer: Any, one: int | None, eager: bool = False, **options: Any) -> Any:
    """Train on one rank's part of each batch, or on the whole (None)."""
    inputs, targets = data(hvd.size())
    if one is None:
        inputs, targets = inputs.reshape(-1, 5), targets.reshape(-1, 2)
        batch = BATCH * hvd.size()
    else:
        inputs, targets = inputs[:, one].reshape(-1, 5), targets[:, one].reshape(-1, 2)
        batch = BATCH
    # Keras compares by object, so the same optimizer can't be compiled into two models.
    model.compile(optimizer=optimizer, loss="mse", run_eagerly=eager, jit_compile="auto")
    options = {"epochs": EPOCHS} | options
    return model.fit(inputs, targets, batch_size=batch, shuffle=False, verbose=0, **options)


def assert_same(model: Any, expected: Any, tolerance: float = 1e-5) -> None:
    for one, other in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.conformance
@pytest.mark.parametrize("eager", [False, True], ids=["compiled", "eager"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_fit_gives_the_weights_of_one_process(kind: str, eager: bool) -> None:
    if eager and (BACKEND == "torch" or kind not in ("sgd", "adam")):
        pytest.skip("covered by the compiled ones")
    model, expected = make_model(), make_model()
    fit(model, hvd.DistributedOptimizer(OPTIMIZERS[kind]()), hvd.rank(), eager)
    fit(expected, OPTIMIZERS[kind](), None, eager)
    assert_same(model, expected)


@pytest.mark.skipif(BACKEND == "torch", reason="has no XLA")
def test_xla_is_turned_off_where_it_knows_no_operation_of_ours(tmp_path: Path) -> None:
    model, expected = make_model(), make_model()
    model.compile(hvd.DistributedOptimizer(OPTIMIZERS["sgd"]()), "mse", jit_compile=True)
    inputs, targets = data(hvd.size())
    model.train_on_batch(inputs[0, hvd.rank()], targets[0, hvd.rank()])
    assert model.jit_compile == (BACKEND == "jax")
    model.save(tmp_path / "compiled.keras")
    loaded = hvd.load_model(tmp_path / "compiled.keras")
    loaded.train_on_batch(inputs[1, hvd.rank()], targets[1, hvd.rank()])
    expected.compile(OPTIMIZERS["sgd"](), "mse", jit_compile=True)
    assert expected.jit_compile
    for batch in range(2):
        expected.train_on_batch(inputs[batch].reshape(-1, 5), targets[batch].reshape(-1, 2))
    assert_same(loaded, expected)


@pytest.mark.parametrize(
    "options",
    [
        {"clipnorm": 0.1},
        {"global_clipnorm": 0.1},
        {"gradient_accumulation_steps": 3},
        {"use_ema": True, "ema_overwrite_frequency": 2},
        {"weight_decay": 0.1},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_of_keras_apply_to_reduced_gradients(options: dict[str, Any]) -> None:
    model, expected = make_model(), make_model()
    fit(model, hvd.DistributedOptimizer(OPTIMIZERS["adam"](**options)), hvd.rank())
    fit(expected, OPTIMIZERS["adam"](**options), None)
    assert_same(model, expected)


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_predivide_factor": 2.0},
        {"groups": 2},
        {"num_groups": 1},
        {"name": "Adam"},
        {"sparse_as_dense": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_that_change_no_result(options: dict[str, Any]) -> None:
    model, expected = make_model(), make_model()
    fit(model, hvd.DistributedOptimizer(OPTIMIZERS["adam"](), **options), hvd.rank())
    fit(expected, OPTIMIZERS["adam"](), None)
    assert_same(model, expected)


def test_groups_of_variables() -> None:
    model, expected = make_model(), make_model()
    groups = [model.layers[0].trainable_variables]
    fit(model, hvd.DistributedOptimizer(OPTIMIZERS["sgd"](), groups=groups), hvd.rank())
    fit(expected, OPTIMIZERS["sgd"](), None)
    assert_same(model, expected)


@pytest.mark.parametrize(
    "compression",
    [
        hvd.Compression.fp16,
        hvd.Compression.bf16,
        hvd.Compression.int8,
        hvd.Compression.topk(0.1),
        hvd.Compression.adaptive(0.1),
    ],
    ids=["fp16", "bf16", "int8", "topk", "adaptive"],
)
def test_compression(compression: Any) -> None:
    model, expected = make_model(), make_model()
    fit(model, hvd.DistributedOptimizer(OPTIMIZERS["sgd"](), compression=compression), hvd.rank())
    fit(expected, OPTIMIZERS["sgd"](), None)
    assert_same(model, expected, tolerance=0.02)


def test_sum_adds_up() -> None:
    model, expected = make_model(), make_model()
    optimizer = keras.optimizers.SGD(0.1 / hvd.size())
    fit(model, hvd.DistributedOptimizer(optimizer, op=hvd.Sum), hvd.rank())
    fit(expected, keras.optimizers.SGD(0.1), None)
    assert_same(model, expected)


@pytest.mark.skipif(BACKEND == "jax", reason="refused there")
@pytest.mark.parametrize("average", [True, False])
def test_passes_of_a_step(average: bool) -> None:
    model, expected = make_model(), make_model()
    optimizer = hvd.DistributedOptimizer(
        OPTIMIZERS["sgd"](),
        backward_passes_per_step=BATCHES,
        average_aggregated_gradients=average,
    )
    fit(model, optimizer, hvd.rank())
    inputs, targets = data(hvd.size())
    rate = 0.1 if average else 0.1 * BATCHES
    expected.compile(optimizer=keras.optimizers.SGD(rate), loss="mse")
    for _ in range(EPOCHS):
        expected.train_on_batch(inputs.reshape(-1, 5), targets.reshape(-1, 2))
    assert_same(model, expected)


@pytest.mark.skipif(BACKEND == "jax", reason="not possible")
def test_passes_where_a_layer_is_frozen_later() -> None:
    model = make_model()
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](), backward_passes_per_step=2)
    fit(model, optimizer, hvd.rank())
    before = model.get_weights()
    model.get_layer("first").trainable = False
    fit(model, optimizer, hvd.rank())
    changed = [(one != other).any() for one, other in zip(before, model.get_weights(), strict=True)]
    assert changed == [False, False, True, True]


@pytest.mark.skipif(BACKEND != "tensorflow", reason="XLA compiles JAX's, and none of PyTorch's")
def test_xla_does_not_compile_the_step(tmp_path: Path) -> None:
    """Keras would compile it wherever there is an accelerator."""
    model = make_model()
    model.compile(optimizer=OPTIMIZERS["sgd"](), loss="mse", jit_compile=True)
    model.save(tmp_path / "model.keras")
    loaded = hvd.load_model(tmp_path / "model.keras")
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"]())
    model.compile(optimizer=optimizer, loss="mse", jit_compile=True)
    for one in (model, loaded):
        assert one.jit_compile
        one.fit(np.ones((BATCH, 5)), np.ones((BATCH, 2)), verbose=0)
        assert not one.jit_compile


@pytest.mark.skipif(BACKEND != "jax", reason="possible elsewhere")
def test_passes_are_refused() -> None:
    with pytest.raises(ValueError, match="gradient_accumulation_steps"):
        hvd.DistributedOptimizer(OPTIMIZERS["sgd"](), backward_passes_per_step=2)


def test_the_optimizer_stays_itself() -> None:
    model = make_model()
    plain = OPTIMIZERS["adam"]()
    fit(model, plain, None)
    slots = [np.array(keras.ops.convert_to_numpy(one)) for one in plain.variables]
    distributed = hvd.DistributedOptimizer(plain)
    assert distributed is plain
    assert isinstance(distributed, keras.optimizers.Adam)
    assert type(distributed).__name__ == "Adam"
    for one, before in zip(distributed.variables, slots, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(one), before)
    fit(model, distributed, hvd.rank())
    assert int(distributed.iterations) == 2 * BATCHES * EPOCHS


@pytest.mark.conformance
def test_a_saved_model_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    straight, stopped = make_model(), make_model()
    fit(straight, hvd.DistributedOptimizer(OPTIMIZERS["adam"]()), hvd.rank(), epochs=4)
    fit(stopped, hvd.DistributedOptimizer(OPTIMIZERS["adam"]()), hvd.rank(), epochs=2)
    stopped.save(tmp_path / "stopped.keras")
    resumed = hvd.load_model(tmp_path / "stopped.keras")
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedOptimizer(resumed.optimizer)
    assert int(resumed.optimizer.iterations) == 2 * BATCHES
    inputs, targets = data(hvd.size())
    mine = inputs[:, hvd.rank()].reshape(-1, 5), targets[:, hvd.rank()].reshape(-1, 2)
    resumed.fit(*mine, batch_size=BATCH, shuffle=False, verbose=0, epochs=2)
    assert_same(resumed, straight, tolerance=0)
    assert type(keras.models.load_model(tmp_path / "stopped.keras").optimizer) is type(
        OPTIMIZERS["adam"]()
    )


def test_a_rank_may_have_made_models_alone() -> None:
    if hvd.rank() == 0:
        unnamed = keras.Sequential([keras.Input((5,)), keras.layers.Dense(2)])
        fit(unnamed, OPTIMIZERS["sgd"](), None, epochs=1)
        hvd.DistributedOptimizer(OPTIMIZERS["sgd"]())
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(2)])
    fit(model, hvd.DistributedOptimizer(OPTIMIZERS["sgd"]()), hvd.rank())
    for kernels in zip(*hvd.allgather_object(model.get_weights()), strict=True):
        for other in kernels:
            np.testing.assert_array_equal(other, kernels[0])


def test_local_layers_are_left_to_the_ranks() -> None:
    model, expected = make_model(), make_model()
    optimizer = hvd.PartialDistributedOptimizer(
        OPTIMIZERS["sgd"](), local_layers=model.layers[1], scale_local_gradients=False
    )
    fit(model, optimizer, hvd.rank(), epochs=1)
    fit(expected, OPTIMIZERS["sgd"](), hvd.rank(), epochs=1)
    everybodys = hvd.allgather_object([layer.get_weights() for layer in model.layers])
    for kernels in zip(*[first for first, _ in everybodys], strict=True):
        for other in kernels:
            np.testing.assert_array_equal(other, kernels[0])
    if hvd.size() > 1:
        assert not np.array_equal(everybodys[0][1][0], everybodys[-1][1][0])


def test_ranks_outside_of_the_set_train_on_their_own(need_ranks: None) -> None:
    rest = hvd.add_process_set(range(hvd.size() - 1))
    model = make_model()
    fit(model, hvd.DistributedOptimizer(OPTIMIZERS["sgd"](), process_set=rest), hvd.rank())
    if not rest.included():
        alone = make_model()
        fit(alone, OPTIMIZERS["sgd"](), hvd.rank())
        assert_same(model, alone, tolerance=0)
    weights = hvd.allgather_object(model.get_weights())
    for one in weights[1:-1]:
        for weight, other in zip(one, weights[0], strict=True):
            np.testing.assert_array_equal(weight, other)
    hvd.remove_process_set(rest)


@pytest.mark.parametrize("elements", [1 << 10, 1 << 20])
def test_large_gradients(elements: int) -> None:
    """Larger than what a backend passes on in place."""
    model = keras.Sequential([keras.Input((elements // 64,)), keras.layers.Dense(64)])
    before = model.get_weights()[0]
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)), loss="mse")
    ones = np.full((1, elements // 64), hvd.rank(), np.float32)
    model.train_on_batch(
        ones, keras.ops.convert_to_numpy(model(ones)) - 32
    )  # a gradient of 1 for each output
    expected = before - np.float32((hvd.size() - 1) / 2)
    np.testing.assert_allclose(model.get_weights()[0], expected, rtol=1e-3, atol=1e-3)


def test_loss_scaling() -> None:
    model, expected = make_model(), make_model()
    scaled = keras.optimizers.LossScaleOptimizer(OPTIMIZERS["sgd"](), initial_scale=8.0)
    fit(model, hvd.DistributedOptimizer(scaled), hvd.rank())
    fit(expected, OPTIMIZERS["sgd"](), None)
    assert_same(model, expected)


def test_loss_scaling_around_it_is_refused() -> None:
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"]())
    with pytest.raises(ValueError, match="the other way round"):
        fit(make_model(), keras.optimizers.LossScaleOptimizer(optimizer), hvd.rank())


@pytest.mark.conformance
def test_all_ranks_begin_with_the_root() -> None:
    root = hvd.size() - 1
    model, expected = make_model(seed=1 + hvd.rank()), make_model(seed=1 + root)
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(root)]
    fit(model, hvd.DistributedOptimizer(OPTIMIZERS["adam"]()), hvd.rank(), callbacks=callbacks)
    fit(expected, OPTIMIZERS["adam"](), None)
    assert_same(model, expected)


def test_local_variables_are_left_alone() -> None:
    model = make_model(seed=1 + hvd.rank())
    local, registered = model.layers[-1].variables
    before = [np.array(local), np.array(registered)]
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[local])
    callback.register_local_var(registered)
    callback.set_model(model)
    model.compile(optimizer=OPTIMIZERS["sgd"](), loss="mse")
    callback.on_train_begin()
    np.testing.assert_array_equal(local, before[0])
    np.testing.assert_array_equal(registered, before[1])
    first = [np.array(one) for one in model.layers[0].variables]
    for mine, root in zip(first, hvd.broadcast_object(first, root_rank=0), strict=True):
        np.testing.assert_array_equal(mine, root)


def test_metrics_are_averages() -> None:
    history = fit(
        make_model(),
        hvd.DistributedOptimizer(OPTIMIZERS["sgd"]()),
        hvd.rank(),
        callbacks=[hvd.callbacks.MetricAverageCallback()],
    ).history
    expected = fit(make_model(), OPTIMIZERS["sgd"](), None).history
    np.testing.assert_allclose(history["loss"], expected["loss"], rtol=1e-5)
    assert hvd.allgather_object(history) == [history] * hvd.size()


def test_a_tracker_gets_averages_and_the_runtimes_numbers(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    model, optimizer = make_model(), hvd.DistributedOptimizer(OPTIMIZERS["sgd"]())
    with TensorBoard(tmp_path, every=2) as tracker:
        callbacks = [hvd.callbacks.MetricAverageCallback(), hvd.callbacks.TrackerCallback(tracker)]
        history = fit(model, optimizer, hvd.rank(), callbacks=callbacks).history
        again = fit(model, optimizer, hvd.rank(), epochs=1, callbacks=callbacks[:1]).history
        fit(model, optimizer, hvd.rank(), epochs=1, callbacks=callbacks[1:])
    if hvd.rank() > 0:
        assert not list(tmp_path.iterdir())
        return
    assert "horoscale/bytes" not in history
    found = curves(tmp_path)
    steps, losses = zip(*found["loss"], strict=True)
    assert steps == (BATCHES, 2 * BATCHES, 4 * BATCHES)  # the third epoch was not tracked
    np.testing.assert_allclose(losses[:2], history["loss"], rtol=1e-5)
    assert losses[2] < again["loss"][0]
    assert [step for step, _ in found["horoscale/bytes"]] == [1, 3, 5, 10, 12]


def test_learning_rate_is_warmed_up() -> None:
    history = fit(
        make_model(),
        hvd.DistributedOptimizer(OPTIMIZERS["momentum"]()),
        hvd.rank(),
        epochs=4,
        callbacks=[hvd.callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=3, verbose=1)],
    ).history
    per_epoch = (1 - 1 / hvd.size()) / 3
    expected = [0.1 * (1 / hvd.size() + per_epoch * epoch) for epoch in (1, 2, 3)]
    np.testing.assert_allclose(history["learning_rate"], [*expected, 0.1], rtol=1e-5)


def test_a_log_has_the_learning_rate_once() -> None:
    """Keras's own callbacks see it as well."""
    history = fit(
        make_model(),
        hvd.DistributedOptimizer(OPTIMIZERS["sgd"]()),
        hvd.rank(),
        callbacks=[
            hvd.callbacks.LearningRateScheduleCallback(0.1, 0.5),
            keras.callbacks.ReduceLROnPlateau(monitor="loss"),
        ],
    ).history
    assert [name for name in history if name in ("lr", "learning_rate")] == ["learning_rate"]


def test_learning_rate_follows_a_schedule() -> None:
    schedule = hvd.callbacks.LearningRateScheduleCallback
    history = fit(
        make_model(),
        hvd.DistributedOptimizer(OPTIMIZERS["sgd"]()),
        hvd.rank(),
        epochs=4,
        callbacks=[schedule(0.1, 1.0, end_epoch=2), schedule(0.1, lambda e: 0.1**e, 2)],
    ).history
    np.testing.assert_allclose(history["learning_rate"], [0.1, 0.1, 0.001, 0.0001], rtol=1e-5)


def test_the_best_model_is_saved_once(tmp_path: Path) -> None:
    path = tmp_path / "best.keras"
    best = hvd.callbacks.BestModelCheckpoint(monitor="loss", filepath=str(path))
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"]())
    fit(make_model(), optimizer, hvd.rank(), callbacks=[best])
    assert path.exists() == (hvd.rank() == 0)


def test_values() -> None:
    ranks = hvd.size()
    assert hvd.allreduce(float(hvd.rank())) == (ranks - 1) / 2
    np.testing.assert_array_equal(hvd.allreduce(np.ones(3), op=hvd.Sum), np.full(3, ranks))
    np.testing.assert_array_equal(
        hvd.allreduce(keras.ops.ones(2), op=hvd.Sum, compression=hvd.Compression.fp16),
        np.full(2, ranks),
    )
    np.testing.assert_array_equal(hvd.allgather(hvd.rank()), np.arange(ranks))
    assert hvd.broadcast(hvd.rank(), root_rank=ranks - 1) == ranks - 1
    rows = hvd.reducescatter(np.arange(ranks, dtype=np.float32), op=hvd.Sum)
    np.testing.assert_array_equal(rows, [hvd.rank() * ranks])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backward_passes_per_step": 0}, "backward_passes_per_step"),
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "op=Average"),
        ({"compression": 3}, "compression"),
        ({"groups": -1}, "negative"),
        ({"groups": 1, "num_groups": 1}, "not both"),
    ],
    ids=str,
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hvd.DistributedOptimizer(OPTIMIZERS["sgd"](), **options)


def test_what_is_no_optimizer() -> None:
    with pytest.raises(ValueError, match="takes an optimizer of Keras"):
        hvd.DistributedOptimizer("sgd")
