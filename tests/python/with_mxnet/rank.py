"""A rank of test_mxnet.py: python rank.py CASE... Each case asserts its expectations."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from typing import Any

import mxnet as mx
import numpy as np
import pytest

import horoscale.mxnet as hvd

DTYPES = ("float32", "float64", "float16", "uint8", "int8", "int32", "int64")
SIZES = (0, 1, 7, 4096, 300_001)


def values(rank: int, size: int, dtype: str) -> np.ndarray:
    return (np.arange(size) % 5 + rank).astype(dtype)


def array(data: np.ndarray) -> Any:
    with mx.util.np_shape(True):
        return (
            mx.nd.array(data, dtype=data.dtype)
            if data.size
            else mx.nd.empty(data.shape, dtype=data.dtype)
        )


def everybodys(size: int, dtype: str) -> list[np.ndarray]:
    return [values(rank, size, dtype) for rank in range(hvd.size())]


def reductions() -> None:
    for dtype in DTYPES:
        for size in SIZES:
            expected = sum(one.astype("float64") for one in everybodys(size, dtype))
            given = array(values(hvd.rank(), size, dtype))
            result = hvd.allreduce(given, average=False)
            assert result.dtype == np.dtype(dtype)
            np.testing.assert_array_equal(result.asnumpy(), expected.astype(dtype))
            average = hvd.allreduce(given).asnumpy()
            if dtype.startswith("float"):
                np.testing.assert_allclose(average, expected / hvd.size(), rtol=1e-3)
            else:
                np.testing.assert_array_equal(average, expected.astype("int64") // hvd.size())
            assert hvd.allreduce_(given, op=hvd.Max, priority=3) is given
            np.testing.assert_array_equal(given.asnumpy(), values(hvd.size() - 1, size, dtype))
    orthogonal = mx.nd.array(np.eye(hvd.size())[hvd.rank()])
    assert hvd.allreduce(orthogonal, op=hvd.Adasum).asnumpy().tolist() == [1.0] * hvd.size()


def groups() -> None:
    given = [array(values(hvd.rank(), size, "float32")) for size in SIZES]
    totals = [sum(everybodys(size, "float32")) for size in SIZES]
    for result, total in zip(hvd.grouped_allreduce(given, average=False), totals, strict=True):
        np.testing.assert_array_equal(result.asnumpy(), total)
    hvd.grouped_allreduce_(given, average=False, prescale_factor=2.0)
    for result, total in zip(given, totals, strict=True):
        np.testing.assert_array_equal(result.asnumpy(), 2 * total)
    shared = mx.nd.ones((3, 2))  # rows of one array, which the engine treats as one
    hvd.grouped_allreduce_([shared[0], shared[2]], average=False)
    assert shared.asnumpy()[:, 0].tolist() == [hvd.size(), 1, hvd.size()]
    rows = hvd.grouped_allgather([mx.nd.ones((1, 2)), array(np.ones((hvd.rank(), 1), "float32"))])
    assert [one.shape for one in rows] == [
        (hvd.size(), 2),
        (sum(range(hvd.size())), 1),
    ]
    parts = hvd.grouped_reducescatter([mx.nd.ones((hvd.size(), 2))] * 2, op=hvd.Sum)
    assert [one.asnumpy().tolist() for one in parts] == [[[hvd.size()] * 2]] * 2


def movement() -> None:
    rank, size = hvd.rank(), hvd.size()
    for dtype in DTYPES:
        mine = array(np.full((rank, 3), rank, dtype))
        expected = np.concatenate([np.full((one, 3), one, dtype) for one in range(size)])
        np.testing.assert_array_equal(hvd.allgather(mine).asnumpy(), expected)
        sent = hvd.broadcast(array(values(rank, 9, dtype)), size - 1)
        np.testing.assert_array_equal(sent.asnumpy(), values(size - 1, 9, dtype))
        result, rows = hvd.alltoall(array(values(rank, size, dtype)), [1] * size)
        expected = np.array([values(one, size, dtype)[rank] for one in range(size)])
        np.testing.assert_array_equal(result.asnumpy(), expected)
        assert rows.asnumpy().tolist() == [1] * size
        whole = sum(everybodys(2 * size + 1, dtype))
        first = 2 * rank + min(rank, 1)
        part = hvd.reducescatter(array(values(rank, 2 * size + 1, dtype)), op=hvd.Sum).asnumpy()
        np.testing.assert_array_equal(part, whole[first : first + 2 + (rank == 0)])
    even = hvd.alltoall(mx.nd.arange(2 * size), splits=None).asnumpy()
    assert even.tolist() == [2 * rank, 2 * rank + 1] * size
    splits = mx.nd.array([rank] + [0] * (size - 1), dtype="int32")
    uneven, rows = hvd.alltoall(array(np.ones((rank, 1), "float32")), splits)
    assert uneven.shape[0] == (sum(range(size)) if rank == 0 else 0)
    place = mx.np.ones((2, 2)) * rank
    assert isinstance(hvd.broadcast(place, 0), mx.np.ndarray)
    assert hvd.broadcast_(place, 0).asnumpy().sum() == 0
    assert hvd.broadcast_object({"rank": rank}, 0) == {"rank": 0}
    assert hvd.allgather_object(rank) == list(range(size))


def layouts() -> None:
    """Results of convolutions have a layout of their own."""
    data = mx.nd.random.uniform(shape=(2, 16, 8, 8))
    weight = mx.nd.ones((16, 16, 3, 3))
    result = mx.nd.Convolution(data, weight, kernel=(3, 3), num_filter=16, no_bias=True)
    expected = hvd.allreduce(mx.nd.array(result.asnumpy())).asnumpy()
    again = mx.nd.Convolution(data, weight, kernel=(3, 3), num_filter=16, no_bias=True)
    np.testing.assert_allclose(hvd.allreduce(again).asnumpy(), expected, rtol=1e-6)


def orders() -> None:
    """The ranks push in opposite orders, and drop their inputs at once."""
    names = [str(i) for i in range(16)]
    results = {}
    for name in names if hvd.rank() % 2 else reversed(names):
        results[name] = hvd.allreduce(mx.nd.ones(1000) * int(name), average=False, name=name)
    for name in names:
        assert results[name].asnumpy()[999] == int(name) * hvd.size()


def failure(call: Callable[[], Any], *classes: type[Exception]) -> str:
    with pytest.raises(classes[0]) as caught:
        call().wait_to_read()
    assert all(isinstance(caught.value, one) for one in classes)
    return str(caught.value)


def errors() -> None:
    rank, error = hvd.rank(), mx.base.MXNetError
    text = failure(lambda: hvd.allreduce(mx.nd.ones(3 + rank), name="x"), error, hvd.MismatchError)
    assert '"x"' in text
    assert "float32[3]" in text
    assert "float32[4]" in text
    failure(lambda: hvd.alltoall(mx.nd.ones(4), [9] * hvd.size()), error, ValueError)
    failure(lambda: hvd.alltoall(mx.nd.ones(4), [1]), error, ValueError)
    failure(lambda: hvd.broadcast(mx.nd.ones(1), hvd.size()), ValueError)
    failure(lambda: hvd.allreduce(mx.nd.ones(1), True, op=hvd.Sum), ValueError)
    failure(lambda: hvd.allreduce(np.ones(1)), TypeError)
    failure(lambda: hvd.grouped_allreduce([]), ValueError)
    failure(lambda: hvd.allreduce(mx.nd.zeros((2, 2), stype="row_sparse")), NotImplementedError)
    failure(lambda: hvd.reducescatter(mx.np.array(1.0)), ValueError)
    failure(lambda: hvd.broadcast_parameters([1]), ValueError)
    assert hvd.allreduce(mx.nd.ones(1), average=False).asscalar() == hvd.size()  # it continues


def dead() -> None:
    if hvd.rank() == hvd.size() - 1:
        os._exit(0)
    text = failure(lambda: hvd.allreduce(mx.nd.ones(4), name="alone"), hvd.HorovodInternalError)
    assert f"rank {hvd.size() - 1}" in text
    print("survived", flush=True)
    os._exit(0)


def sets() -> None:
    half = hvd.add_process_set([0, 1])
    if hvd.rank() < 2:
        assert hvd.allreduce(mx.nd.ones(2), average=False, process_set=half).asnumpy()[0] == 2
        assert hvd.allgather(mx.nd.ones(2), process_set=half).shape == (4,)
    else:
        failure(lambda: hvd.allreduce(mx.nd.ones(2), process_set=half), ValueError)
    hvd.remove_process_set(half)
    other = hvd.add_process_set([1, 2])  # reuses the ID, and counts unnamed calls anew
    if hvd.rank() in (1, 2):
        assert hvd.allreduce(mx.nd.ones(2), average=False, process_set=other).asnumpy()[0] == 2
    hvd.barrier()


def steps(make: Callable[[Any], Any], rows: slice, batch: int) -> list[np.ndarray]:
    """Train a perceptron with Gluon on some rows, and return its parameters."""
    random = np.random.default_rng(1)
    data, labels = random.normal(size=(8, 6)), random.normal(size=(8, 1))
    network = mx.gluon.nn.Sequential()
    network.add(mx.gluon.nn.Dense(5, activation="tanh"), mx.gluon.nn.Dense(1))
    network.initialize(mx.init.Constant(0.1))
    trainer = make(network.collect_params())
    for _ in range(3):
        with mx.autograd.record():
            loss = mx.gluon.loss.L2Loss()(
                network(mx.nd.array(data[rows])), mx.nd.array(labels[rows])
            )
        loss.backward()
        trainer.step(batch)
    return [one.data().asnumpy() for one in network.collect_params().values()]


def trainer() -> None:
    how = {"learning_rate": 0.1, "momentum": 0.9}
    alone = steps(lambda params: mx.gluon.Trainer(params, "sgd", dict(how)), slice(None), 8)
    mine, batch = slice(hvd.rank(), None, hvd.size()), 8 // hvd.size()
    for options in (
        {},
        {"num_groups": 2},
        {"gradient_predivide_factor": 2.0, "prefix": "p"},
        {"compression": hvd.Compression.bf16},
    ):
        ours = steps(
            lambda params, options=options: hvd.DistributedTrainer(
                params, "sgd", dict(how), **options
            ),
            mine,
            batch,
        )
        for one, other in zip(ours, alone, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def fitted(optimizer: Any, rows: slice, batch: int) -> list[np.ndarray]:
    """Train with Module on some rows, and return the parameters."""
    random = np.random.default_rng(1)
    data, labels = random.normal(size=(8, 6)), random.normal(size=(8, 1))
    symbol = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=1, name="f")
    symbol = mx.sym.LinearRegressionOutput(symbol, mx.sym.Variable("label"))
    module = mx.mod.Module(symbol, label_names=["label"])
    batches = mx.io.NDArrayIter(data[rows], labels[rows], batch, label_name="label")
    module.bind(batches.provide_data, batches.provide_label)
    module.init_params(mx.init.Constant(0.1))
    module.init_optimizer(kvstore=None, optimizer=optimizer)
    for _ in range(3):
        batches.reset()
        for one in batches:
            module.forward_backward(one)
            module.update()
    return [module.get_params()[0][name].asnumpy() for name in ("f_weight", "f_bias")]


def optimizer() -> None:
    mine, batch = slice(hvd.rank(), None, hvd.size()), 8 // hvd.size()
    for name in ("sgd", "adam"):  # the one supports several parameters at once, the other does not
        alone = fitted(
            mx.optimizer.create(name, learning_rate=0.1, rescale_grad=1 / 8), slice(None), 8
        )
        for options in ({}, {"num_groups": 1}, {"gradient_predivide_factor": 2.0}):
            own = mx.optimizer.create(name, learning_rate=0.1, rescale_grad=1 / batch)
            wrapped = hvd.DistributedOptimizer(own, **options)
            for one, other in zip(fitted(wrapped, mine, batch), alone, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
            wrapped.set_learning_rate(0.5)
            assert own.lr == wrapped.learning_rate == 0.5
            assert pickle.loads(pickle.dumps(wrapped)).lr == 0.5


def parameters() -> None:
    mx.random.seed(hvd.rank())
    np.random.seed(hvd.rank())
    hvd.broadcast_parameters({1: mx.nd.ones(2), 10: mx.nd.ones(1)}, root_rank=0, prefix="i")
    given = {1: mx.nd.ones(2) * hvd.rank()}
    hvd.broadcast_parameters(given, root_rank=hvd.size() - 1)
    assert given[1].asnumpy()[0] == hvd.size() - 1
    network = mx.gluon.nn.Sequential()
    network.add(mx.gluon.nn.Dense(4, in_units=3), mx.gluon.nn.Dense(2))
    network.initialize(mx.init.Normal(1.0))
    hvd.broadcast_parameters(network.collect_params(), root_rank=0)
    network(mx.nd.ones((1, 3)))  # the second layer gets its shape, and rank 0's values
    for one in network.collect_params().values():
        gathered = hvd.allgather(one.data().reshape((1, -1))).asnumpy()
        assert (gathered == gathered[0]).all()


def again() -> None:
    hvd.allreduce(mx.nd.ones(1))
    hvd.shutdown()
    hvd.init()
    assert hvd.allreduce(mx.nd.ones(1), average=False).asscalar() == hvd.size()


def main() -> None:
    hvd.init(process_sets="dynamic")
    for case in sys.argv[1:]:
        globals()[case]()
        print(f"{case} passed", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
