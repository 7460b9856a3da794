"""Gradients through TensorFlow's collectives, and training with the tape and the optimizers."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import keras  # noqa: E402
from support.tensorflow_reference import all_values, call, check  # noqa: E402

import horoscale.tensorflow as hvd  # noqa: E402

MODES = pytest.mark.parametrize("mode", ["eager", "graph"])


def weights(shape: tuple[int, ...], rank: int) -> np.ndarray:
    return np.random.default_rng(rank + 100).uniform(-1, 1, shape)


def numeric(function, every: list[np.ndarray], rank: int) -> np.ndarray:
    """Derivative of a function of all ranks' inputs by one rank's, by central differences."""
    result = np.zeros_like(every[rank])
    for index in np.ndindex(result.shape):
        difference = 0.0
        for sign in (1, -1):
            moved = [one.copy() for one in every]
            moved[rank][index] += sign * 1e-6
            difference += sign * function(moved)
        result[index] = difference / 2e-6
    return result


def losses(kind: str, every: list[np.ndarray]) -> list[float]:
    """Each rank's loss: the sum of its result times its weights."""
    size = len(every)
    ranks = range(size)
    whole = np.concatenate(every)
    results = {
        "Sum": lambda r: sum(every),
        "Average": lambda r: sum(every) / size,
        "allgather": lambda r: whole,
        "broadcast": lambda r: every[0],
        "alltoall": lambda r: np.concatenate([one[2 * r : 2 * r + 2] for one in every]),
        "reducescatter": lambda r: np.array_split(sum(every), size)[r],
    }[kind]
    return [float(np.sum(results(r) * weights(results(r).shape, r))) for r in ranks]


CALLS = {
    "Sum": lambda x: hvd.allreduce(x, op=hvd.Sum),
    "Average": lambda x: hvd.allreduce(x),
    "allgather": hvd.allgather,
    "broadcast": lambda x: hvd.broadcast(x, 0),
    "alltoall": hvd.alltoall,
    "reducescatter": lambda x: hvd.reducescatter(x, op=hvd.Sum),
}
# A result that all ranks hold alike counts once: gradients are those of the average of the losses.
SCALES = {"allgather": "average", "broadcast": "average", "reducescatter": "times size"}


@MODES
@pytest.mark.parametrize("kind", CALLS)
def test_gradient(kind: str, mode: str) -> None:
    every = [one.numpy() for one in all_values("float64", (2 * hvd.size(), 2))]

    def run(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = CALLS[kind](x)
            loss = tf.reduce_sum(result * weights(tuple(result.shape), hvd.rank()))
        return tape.gradient(loss, x)

    if mode == "graph":  # whose results have no static shape
        inner = run
        run = lambda x: inner(x) if kind not in ("allgather", "alltoall") else _fed(kind, x)  # noqa: E731
    expected = numeric(lambda moved: sum(losses(kind, moved)), every, hvd.rank())
    expected *= {"average": 1 / hvd.size(), "times size": hvd.size()}.get(SCALES.get(kind), 1.0)
    if kind == "Average":
        pass  # the average of the losses' gradients is what its own formula gives
    check(call(mode, run, tf.constant(every[hvd.rank()])), expected, exact=False)


def _fed(kind: str, x: tf.Tensor) -> tf.Tensor:
    rows = 2 * hvd.size() * (hvd.size() if kind == "allgather" else 1)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(CALLS[kind](x) * weights((rows, 2), hvd.rank()))
    return tape.gradient(loss, x)


def make_model(seed: int = 0) -> keras.Model:
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)]
    )


def data() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.normal(size=(12 * 4, 5)).astype("float32"), random.normal(size=(12 * 4, 1))


def loss_of(model: keras.Model, x: np.ndarray, y: np.ndarray) -> tf.Tensor:
    return tf.reduce_mean((model(x) - tf.cast(y, tf.float32)) ** 2)


def reference_weights(steps: int = 5) -> list[np.ndarray]:
    """One process with the whole batch."""
    model, (x, y) = make_model(), data()
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    for _ in range(steps):
        with tf.GradientTape() as tape:
            loss = loss_of(model, x, y)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return model.get_weights()


def own_share() -> tuple[np.ndarray, np.ndarray]:
    x, y = data()
    return x[hvd.rank() :: hvd.size()], y[hvd.rank() :: hvd.size()]


def same(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


@MODES
@pytest.mark.parametrize(
    "options",
    [{}, {"num_groups": 2}, {"gradient_predivide_factor": 2.0}, {"sparse_as_dense": True}],
    ids=str,
)
def test_tape_trains_like_one_process(mode: str, options: dict) -> None:
    model, (x, y) = make_model(hvd.rank()), own_share()
    hvd.broadcast_variables(model.variables, root_rank=0)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(model.trainable_variables)

    def step() -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(model, x, y)
        tape = hvd.DistributedGradientTape(tape, **options)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    run = tf.function(step) if mode == "graph" else step
    for _ in range(5):
        run()
    same(model.get_weights(), reference_weights())


@MODES
@pytest.mark.parametrize("passes", [1, 2])
def test_keras_optimizer(mode: str, passes: int) -> None:
    model, (x, y) = make_model(), own_share()
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.1, momentum=0.9),
        backward_passes_per_step=passes,
        average_aggregated_gradients=True,
    )
    optimizer.build(model.trainable_variables)

    def step() -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(model, x, y)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    run = tf.function(step) if mode == "graph" else step
    for _ in range(5 * passes):
        run()
    same(model.get_weights(), reference_weights())
    assert int(optimizer.iterations) == 5


@pytest.mark.parametrize("passes", [1, 2])
def test_tensorflow_1_graph(passes: int) -> None:
    """An optimizer of tf.compat.v1 in a session, with the hook that makes the ranks begin alike."""
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        x = v1.get_variable("x", initializer=tf.fill([3], float(hvd.rank() + 1)))
        loss = tf.reduce_sum(x * float(hvd.rank() + 1))
        optimizer = hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=passes
        )
        step = optimizer.minimize(loss)
        hook = hvd.BroadcastGlobalVariablesHook(root_rank=0)
        hook.begin()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            hook.after_create_session(session, None)
            for _ in range(2 * passes):
                session.run(step)
            result = session.run(x)
    mean = np.mean([rank + 1.0 for rank in range(hvd.size())])
    np.testing.assert_allclose(result, np.full(3, 1.0 - 2 * passes * mean), rtol=1e-5)


def test_local_sources() -> None:
    """Their gradients stay on the rank, divided by the number of ranks unless that is off."""
    shared, local = tf.Variable(1.0), tf.Variable(1.0)
    for scale in (True, False):
        with tf.GradientTape() as tape:
            loss = (shared + local) * float(hvd.rank() + 1)
        tape = hvd.DistributedGradientTape(tape, scale_local_gradients=scale)
        tape.register_local_source(local)
        reduced, own = tape.gradient(loss, [shared, local])
        assert float(reduced) == pytest.approx((hvd.size() + 1) / 2)
        assert float(own) == pytest.approx((hvd.rank() + 1) / (hvd.size() if scale else 1))


def test_partial_tape_knows_layers() -> None:
    model = make_model()
    with tf.GradientTape() as tape:
        loss = loss_of(model, *own_share())
    plain = tape
    tape = hvd.PartialDistributedGradientTape(
        plain, local_layers=model.layers[0], scale_local_gradients=False
    )
    assert isinstance(tape, tf.GradientTape)
    gradients = tape.gradient(loss, model.trainable_variables)
    everyone = hvd.allgather_object([one.numpy() for one in gradients])
    assert all(np.array_equal(one[2], everyone[0][2]) for one in everyone)
    if hvd.size() > 1:
        assert not np.array_equal(everyone[0][0], everyone[1][0])


@MODES
def test_sync_batch_normalization(mode: str) -> None:
    """Like batch normalization of all ranks' examples together: results, gradients, statistics."""
    x = np.random.default_rng(3).normal(2, 3, (8 * hvd.size(), 4, 3)).astype("float32")
    own = tf.constant(x[hvd.rank() * 8 : hvd.rank() * 8 + 8])
    whole, synced = keras.layers.BatchNormalization(), hvd.SyncBatchNormalization()
    for layer in (whole, synced):
        layer.build((None, 4, 3))

    def run(layer: keras.Layer, inputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            result = layer(inputs, training=True)
            loss = tf.reduce_sum(result**3)
        return result, tape.gradient(loss, inputs)

    result, gradient = call(mode, lambda one: run(synced, one), own)
    expected, expected_gradient = run(whole, tf.constant(x))
    rows = slice(hvd.rank() * 8, hvd.rank() * 8 + 8)
    np.testing.assert_allclose(result, expected[rows], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(gradient, expected_gradient[rows], rtol=1e-3, atol=1e-3)
    same(synced.get_weights(), whole.get_weights())
