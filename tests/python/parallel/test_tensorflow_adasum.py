"""op=Adasum in TensorFlow, eagerly and in graphs, against the formula in numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from support.adasum import adasum  # noqa: E402

import horoscale.tensorflow as hvd  # noqa: E402

MODES = pytest.mark.parametrize("mode", ["eager", "graph"])
TOLERANCE = {tf.float16: 2e-3, tf.bfloat16: 1.6e-2, tf.float32: 1e-6, tf.float64: 1e-12}


def of_all_ranks(shape: tuple[int, ...], seed: int = 0, ranks: int | None = None) -> np.ndarray:
    """Values by rank that are neither parallel nor orthogonal."""
    generator = np.random.default_rng(seed)
    own = generator.normal(size=(ranks or hvd.size(), *shape))
    return own + generator.normal(size=shape)


def run(mode: str, function: Callable[..., Any], *arguments: Any) -> Any:
    return (tf.function(function) if mode == "graph" else function)(*arguments)


def check(result: Any, expected: np.ndarray, tolerance: float) -> None:
    assert result.shape == expected.shape
    np.testing.assert_allclose(
        tf.cast(result, tf.float64), expected, rtol=tolerance, atol=tolerance * abs(expected).max()
    )


@pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: dtype.name)
@MODES
def test_allreduce(mode: str, dtype: Any, name: str) -> None:
    every = tf.cast(of_all_ranks((37, 3)), dtype)
    result = run(mode, lambda x: hvd.allreduce(x, op=hvd.Adasum, name=name), every[hvd.rank()])
    assert result.dtype == dtype
    check(result, adasum(list(tf.cast(every, tf.float64).numpy())), TOLERANCE[dtype])


@MODES
def test_each_tensor_of_a_group_has_its_own_weights(mode: str, name: str) -> None:
    shapes = [(4, 5), (1,), (300,)]
    every = [of_all_ranks(shape, seed) for seed, shape in enumerate(shapes)]

    def reduce(*tensors: Any) -> Any:
        return hvd.grouped_allreduce(list(tensors), op=hvd.Adasum, name=name)

    results = run(mode, reduce, *(tf.constant(one[hvd.rank()]) for one in every))
    for result, inputs in zip(results, every, strict=True):
        check(result, adasum(list(inputs)), 1e-12)


@MODES
def test_scale_factors_and_process_sets(mode: str, process_set: hvd.ProcessSet, name: str) -> None:
    if not process_set.included():
        return
    every = of_all_ranks((50,), ranks=process_set.size())

    def reduce(x: Any) -> Any:
        return hvd.allreduce(
            x,
            op=hvd.Adasum,
            prescale_factor=0.5,
            postscale_factor=3.0,
            process_set=process_set,
            name=name,
        )

    result = run(mode, reduce, tf.constant(every[process_set.rank()]))
    check(result, 1.5 * adasum(list(every)), 1e-12)


@MODES
def test_the_tape_combines_gradients(mode: str) -> None:
    every = [of_all_ranks((6,), 1), of_all_ranks((2, 3), 2)]
    variables = [tf.Variable(tf.zeros(one.shape[1:], tf.float64)) for one in every]

    def gradients() -> Any:
        with tf.GradientTape() as tape:
            losses = [
                tf.reduce_sum(v * one[hvd.rank()]) for v, one in zip(variables, every, strict=True)
            ]
            loss = tf.add_n(losses)
        return hvd.DistributedGradientTape(tape, op=hvd.Adasum).gradient(loss, variables)

    for result, inputs in zip(run(mode, gradients), every, strict=True):
        check(result, adasum(list(inputs)), 1e-12)


@pytest.mark.parametrize("is_dense", [True, False], ids=["dense", "slices"])
def test_the_tape_combines_slices_only_as_tensors(is_dense: bool) -> None:
    table = tf.Variable(tf.zeros([4, 2], tf.float64))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, [hvd.rank() % 4]))
    distributed = hvd.DistributedGradientTape(tape, op=hvd.Adasum, sparse_as_dense=is_dense)
    if not is_dense:
        with pytest.raises(NotImplementedError, match="IndexedSlices"):
            distributed.gradient(loss, table)
        return
    every = np.zeros((hvd.size(), 4, 2))
    for rank in range(hvd.size()):
        every[rank, rank % 4] = 1
    check(distributed.gradient(loss, table), adasum(list(every)), 1e-12)


@MODES
def test_it_has_no_gradient(mode: str, name: str) -> None:
    def differentiate(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = hvd.allreduce(x, op=hvd.Adasum, name=name)
        return tape.gradient(y, x)

    with pytest.raises(NotImplementedError, match="op=Adasum has no gradient"):
        run(mode, differentiate, tf.ones([3]))


def test_lossy_compression_is_refused(name: str) -> None:
    for compression in (hvd.Compression.int8, hvd.Compression.topk(0.1)):
        with pytest.raises(NotImplementedError, match="Adasum"):
            hvd.allreduce(tf.ones([3]), op=hvd.Adasum, compression=compression, name=name)


def test_predividing_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="gradient_predivide_factor"):
        hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Adasum, gradient_predivide_factor=2.0)


def test_optimizers_of_tensorflow_1_refuse_it() -> None:
    with pytest.raises(NotImplementedError, match="Adasum"):
        hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0), op=hvd.Adasum)
