"""op=Adasum in Keras's DistributedOptimizer, for Keras 3 and tf_keras, against one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.adasum import adasum

pytest.importorskip("keras")

import horoscale.keras as hvd
from horoscale.common.which_keras import IS_LEGACY, backend, keras

# Keras's own, with its PyTorch backend.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

BATCH = 4
STEPS = 4
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01, clipnorm=0.5),
}
if IS_LEGACY:
    OPTIMIZERS["legacy-adam"] = lambda: keras.optimizers.legacy.Adam(0.01)
KINDS = pytest.mark.parametrize("kind", OPTIMIZERS)
EAGER = pytest.mark.parametrize("eager", [False, True], ids=["compiled", "eager"])


def make_model(constraint: Any = None) -> Any:
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(7, activation="tanh", kernel_constraint=constraint),
            keras.layers.Dense(2),
        ]
    )


def batch(step: int, rank: int) -> tuple[np.ndarray, np.ndarray]:
    inputs = np.random.default_rng((step, rank)).normal(size=(BATCH, 5)).astype(np.float32)
    return inputs, np.stack([inputs.sum(-1), inputs[..., 0]], -1)


def train(model: Any, optimizer: Any, rank: int, steps: int = STEPS, eager: bool = False) -> None:
    model.compile(optimizer=optimizer, loss="mse", run_eagerly=eager)
    for step in range(steps):
        model.train_on_batch(*batch(step, rank))


def reference(kind: str, ranks: int, steps: int = STEPS, constraint: Any = None) -> Any:
    """All ranks in one process: each trains its own model; the changes are combined in numpy."""
    models = [make_model(constraint) for _ in range(ranks)]
    eager = backend() == "tensorflow"  # faster than tracing so many
    for model in models:
        model.compile(optimizer=OPTIMIZERS[kind](), loss="mse", run_eagerly=eager)
    for step in range(steps):
        before = models[0].get_weights()
        for rank, model in enumerate(models):
            model.train_on_batch(*batch(step, rank))
        after = [model.get_weights() for model in models]
        weights = [
            start + adasum([one - start for one in own])
            for start, own in zip(before, zip(*after, strict=True), strict=True)
        ]
        if constraint is not None:
            weights[0] = np.asarray(constraint(weights[0]))
        for model in models:
            model.set_weights(weights)
    return models[0]


def assert_same(model: Any, expected: Any, tolerance: float = 1e-5) -> None:
    for one, other in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def assert_same_everywhere(model: Any) -> None:
    for others in zip(*hvd.allgather_object(model.get_weights()), strict=True):
        for other in others:
            np.testing.assert_array_equal(other, others[0])


@EAGER
@KINDS
def test_changes_are_combined(kind: str, eager: bool) -> None:
    model = make_model()
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS[kind](), op=hvd.Adasum)
    train(model, optimizer, hvd.rank(), eager=eager)
    assert int(optimizer.iterations) == STEPS
    assert_same(model, reference(kind, hvd.size()))
    assert_same_everywhere(model)


@pytest.mark.skipif(backend() == "jax", reason="refused there")
@KINDS
def test_passes_of_a_step(kind: str) -> None:
    """Two passes with the same gradients, whose average is applied."""
    model = make_model()
    optimizer = hvd.DistributedOptimizer(
        OPTIMIZERS[kind](),
        op=hvd.Adasum,
        backward_passes_per_step=2,
        average_aggregated_gradients=True,
    )
    model.compile(optimizer=optimizer, loss="mse")
    for step in range(STEPS):
        before = model.get_weights()
        model.train_on_batch(*batch(step, hvd.rank()))
        for one, other in zip(before, model.get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)
        model.train_on_batch(*batch(step, hvd.rank()))
    assert_same(model, reference(kind, hvd.size()))


def test_the_optimizers_accumulation() -> None:
    if IS_LEGACY:
        pytest.skip("Keras 3 has it")
    model = make_model()
    plain = keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2)
    model.compile(hvd.DistributedOptimizer(plain, op=hvd.Adasum), loss="mse")
    for step in range(STEPS):
        for _ in range(2):
            model.train_on_batch(*batch(step, hvd.rank()))
    assert_same(model, reference("sgd", hvd.size()))


def test_embeddings_have_sparse_gradients() -> None:
    """Each rank uses its own row; without momentum, which backends handle differently if sparse."""

    def make() -> Any:
        keras.utils.set_random_seed(1)
        return keras.Sequential([keras.Input((1,)), keras.layers.Embedding(5, 3)])

    model, ranks = make(), range(hvd.size())
    start = model.get_weights()[0]
    changes = []
    for rank in ranks:
        alone = make()
        alone.compile(keras.optimizers.SGD(0.5), loss="mse")
        alone.train_on_batch(np.full((2, 1), rank % 5), np.ones((2, 1, 3)))
        changes.append(alone.get_weights()[0] - start)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.5), op=hvd.Adasum), loss="mse")
    model.train_on_batch(np.full((2, 1), hvd.rank() % 5), np.ones((2, 1, 3)))
    np.testing.assert_allclose(model.get_weights()[0], start + adasum(changes), atol=1e-6)


def test_constraints_hold_for_what_is_combined() -> None:
    constraint = keras.constraints.UnitNorm()
    model = make_model(constraint)
    train(model, hvd.DistributedOptimizer(OPTIMIZERS["sgd"](), op=hvd.Adasum), hvd.rank())
    assert_same(model, reference("sgd", hvd.size(), constraint=constraint))
    norms = np.linalg.norm(model.get_weights()[0], axis=0)
    np.testing.assert_allclose(norms, np.ones(7), rtol=1e-5)


@pytest.mark.parametrize(
    "options",
    [{"groups": 2}, {"compression": hvd.Compression.bf16}, {"scale_local_gradients": False}],
    ids=lambda options: next(iter(options)),
)
def test_options_that_change_no_result(options: dict[str, Any]) -> None:
    model = make_model()
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](), op=hvd.Adasum, **options)
    train(model, optimizer, hvd.rank())
    assert_same(model, reference("sgd", hvd.size()))


def test_local_layers_are_left_to_the_ranks() -> None:
    model, alone = make_model(), make_model()
    optimizer = hvd.PartialDistributedOptimizer(
        OPTIMIZERS["sgd"](), op=hvd.Adasum, local_layers=model.layers[-1]
    )
    train(model, optimizer, hvd.rank(), steps=1)
    train(alone, OPTIMIZERS["sgd"](), hvd.rank(), steps=1)
    combined = reference("sgd", hvd.size(), steps=1)
    weights, own, shared = (one.get_weights() for one in (model, alone, combined))
    for one, other in zip(weights, [*shared[:2], *own[2:]], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_ranks_outside_of_the_set_train_on_their_own(need_ranks: None) -> None:
    rest = hvd.add_process_set(range(hvd.size() - 1))
    model = make_model()
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](), op=hvd.Adasum, process_set=rest)
    train(model, optimizer, hvd.rank())
    if rest.included():
        assert_same(model, reference("sgd", hvd.size() - 1))
    else:
        alone = make_model()
        train(alone, OPTIMIZERS["sgd"](), hvd.rank())
        assert_same(model, alone, tolerance=0)
    hvd.remove_process_set(rest)


def test_a_loaded_model_goes_on(tmp_path: Any) -> None:
    model = make_model()
    train(model, hvd.DistributedOptimizer(OPTIMIZERS["sgd"](), op=hvd.Adasum), hvd.rank(), 2)
    model.save(tmp_path / "model.keras")
    loaded = hvd.load_model(tmp_path / "model.keras", op=hvd.Adasum)
    for step in (2, 3):
        loaded.train_on_batch(*batch(step, hvd.rank()))
    assert_same(loaded, reference("sgd", hvd.size()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gradient_predivide_factor": 2.0}, "gradient_predivide_factor"),
        ({"compression": hvd.Compression.int8}, "compression|int8"),
        ({"compression": type("Own", (hvd.Compression.none,), {})}, "compression"),
    ],
    ids=["predivide", "int8", "own"],
)
def test_what_contradicts_it_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(NotImplementedError, match=message):
        hvd.DistributedOptimizer(OPTIMIZERS["sgd"](), op=hvd.Adasum, **options)


def test_optimizers_that_contradict_it_are_refused() -> None:
    mixed = keras.mixed_precision if IS_LEGACY else keras.optimizers
    scaled = mixed.LossScaleOptimizer(OPTIMIZERS["sgd"]())
    with pytest.raises(NotImplementedError, match="LossScaleOptimizer"):
        hvd.DistributedOptimizer(scaled, op=hvd.Adasum)
    with pytest.raises(NotImplementedError, match="use_ema"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, use_ema=True), op=hvd.Adasum)
    around = mixed.LossScaleOptimizer(hvd.DistributedOptimizer(OPTIMIZERS["sgd"](), op=hvd.Adasum))
    with pytest.raises(ValueError, match="LossScaleOptimizer"):
        train(make_model(), around, hvd.rank(), steps=1)


@pytest.mark.skipif(not IS_LEGACY, reason="Keras 3 has none of them")
def test_graphs_of_tensorflow_1_are_refused() -> None:
    import tensorflow as tf

    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["legacy-adam"](), op=hvd.Adasum)
    with tf.Graph().as_default():
        variable = tf.Variable(1.0)
        with pytest.raises(NotImplementedError, match=r"not a tf\.Graph"):
            optimizer.apply_gradients([(tf.constant(1.0), variable)])
