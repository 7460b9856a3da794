"""Training with TensorFlow's tape and optimizers equals training in one process."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import keras  # noqa: E402
from support.tensorflow_reference import call  # noqa: E402

import horoscale.tensorflow as hvd  # noqa: E402

MODES = pytest.mark.parametrize("mode", ["eager", "graph"])


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
    [{}, {"num_groups": 2, "gradient_predivide_factor": 2.0}],
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
    """A tf.compat.v1 optimizer in a session, with the hook that broadcasts initial values."""
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        x = v1.get_variable("x", initializer=tf.fill([3], float(hvd.rank() + 1)))
        local = v1.get_variable("local", initializer=0.0)
        loss = tf.reduce_sum(x * float(hvd.rank() + 1)) + local * float(hvd.rank())
        optimizer = hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(1.0),
            backward_passes_per_step=passes,
            scale_local_gradients=False,
        )
        optimizer.register_local_var(local)
        step = optimizer.minimize(loss)
        hook = hvd.BroadcastGlobalVariablesHook(root_rank=0)
        with v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
            for _ in range(2 * passes):
                session.run(step)
            result, own = session.run([x, local])
    mean = np.mean([rank + 1.0 for rank in range(hvd.size())])
    np.testing.assert_allclose(result, np.full(3, 1.0 - 2 * passes * mean), rtol=1e-5)
    assert own == pytest.approx(-2.0 * passes * hvd.rank())


def test_local_sources() -> None:
    """Their gradients stay on the rank, divided by the number of ranks unless disabled."""
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
def test_sync_batch_normalization(mode: str, process_set: hvd.ProcessSet) -> None:
    """Like batch normalization of all ranks' examples: results, gradients, statistics."""
    if not process_set.included():
        return
    rows = slice(process_set.rank() * 8, process_set.rank() * 8 + 8)
    x = np.random.default_rng(3).normal(2, 3, (8 * process_set.size(), 4, 3)).astype("float32")
    whole = keras.layers.BatchNormalization()
    synced = hvd.SyncBatchNormalization(process_set=process_set)
    for layer in (whole, synced):
        layer.build((None, 4, 3))

    def run(layer: keras.Layer, inputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            result = layer(inputs, training=True)
            loss = tf.reduce_sum(result**3)
        return result, tape.gradient(loss, inputs)

    result, gradient = call(mode, lambda one: run(synced, one), tf.constant(x[rows]))
    expected, expected_gradient = run(whole, tf.constant(x))
    np.testing.assert_allclose(result, expected[rows], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(gradient, expected_gradient[rows], rtol=1e-3, atol=1e-3)
    same(synced.get_weights(), whole.get_weights())


@MODES
@pytest.mark.parametrize("as_dense", [False, True])
def test_gradients_of_embeddings(mode: str, as_dense: bool) -> None:
    """They are tf.IndexedSlices, and remain so unless sparse_as_dense."""
    table = tf.Variable(tf.ones([5, 2]))

    def run() -> tf.Tensor:
        with tf.GradientTape() as tape:
            rows = tf.gather(table, [0, 1 + hvd.rank()])
            loss = tf.reduce_sum(rows) * float(hvd.rank() + 1)
        tape = hvd.DistributedGradientTape(tape, sparse_as_dense=as_dense)
        gradient = tape.gradient(loss, table)
        assert isinstance(gradient, tf.IndexedSlices) != as_dense
        return tf.convert_to_tensor(gradient)

    expected = np.zeros((5, 2), "float32")
    for rank in range(hvd.size()):
        expected[[0, 1 + rank]] += (rank + 1) / hvd.size()
    np.testing.assert_allclose(call(mode, run), expected, rtol=1e-6)


@MODES
def test_training_in_a_process_set(mode: str, process_set: hvd.ProcessSet) -> None:
    """Its ranks average their gradients; a rank outside keeps its own."""
    x = tf.Variable(0.0)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), process_set=process_set)
    optimizer.build([x])

    def step() -> None:
        with tf.GradientTape() as tape:
            loss = x * float(hvd.rank())
        optimizer.apply_gradients([(tape.gradient(loss, x), x)])

    call(mode, step)
    assert float(x) == pytest.approx(-np.mean(process_set.ranks if process_set.included() else [0]))


def reductions(function, *arguments: tf.Tensor) -> list[tuple[int, int]]:
    """For each allreduce of a function: its priority and number of tensors."""
    graph = tf.function(function).get_concrete_function(*arguments).graph
    ops = [op for op in graph.get_operations() if op.type.endswith("Allreduce")]
    return sorted((op.get_attr("priority"), len(op.outputs)) for op in ops)


def test_groups_and_priorities() -> None:
    """The first variables are the most urgent ones, unless the user sets priorities."""
    variables = [tf.Variable(1.0, name=f"v{i}") for i in range(4)]

    def run(**options: object) -> list[tuple[int, int]]:
        def gradients() -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                loss = tf.add_n([one * one for one in variables])
            tape = hvd.DistributedGradientTape(tape, **options)
            return tape.gradient(loss, variables)

        assert [float(one) for one in tf.function(gradients)()] == [2.0] * 4
        return reductions(gradients)

    assert run() == [(-3, 1), (-2, 1), (-1, 1), (0, 1)]
    assert run(num_groups=2) == [(-2, 2), (0, 2)]
    assert run(groups=[[variables[0], variables[3]]]) == [(-2, 1), (-1, 1), (0, 2)]
    hvd.set_priority(variables[3], 7)
    hvd.set_priority("v2:0", 5)
    assert run() == [(-1, 1), (0, 1), (5, 1), (7, 1)]
    assert run(groups=2) == [(0, 2), (7, 2)]
