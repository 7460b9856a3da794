"""TensorFlow's collectives with a root: every type and mode against a reference."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from support.reference import DTYPES, OPS, defined  # noqa: E402
from support.tensorflow_reference import all_values, call, check, reduced  # noqa: E402

import horoscale.tensorflow as hvd  # noqa: E402

MODES = pytest.mark.parametrize("mode", ["eager", "graph"])


def is_exact(dtype: str, op: str) -> bool:
    rounds = op == "Average" or (op == "Product" and "complex" in dtype)
    return not rounds or "int" in dtype


@pytest.mark.parametrize("dtype", DTYPES)
@MODES
def test_reduce(dtype: str, mode: str) -> None:
    inputs = all_values(dtype, 1000)
    ops = [op for op in OPS if defined(dtype, op)]
    root = hvd.size() - 1

    def run(x: tf.Tensor) -> list[tf.Tensor]:
        return [hvd.reduce(x, root, op=getattr(hvd, op)) for op in ops]

    for op, result in zip(ops, call(mode, run, inputs[hvd.rank()]), strict=True):
        if hvd.rank() == root:
            check(result, reduced(inputs, op), is_exact(dtype, op))
        else:
            assert result.shape == [0]
            assert result.dtype == inputs[0].dtype


@pytest.mark.parametrize("dtype", [*DTYPES, "uint32", "uint64"])
@MODES
def test_gather_and_scatter(dtype: str, mode: str) -> None:
    kind = "int64" if dtype in ("uint32", "uint64") else dtype
    every = [tf.cast(one, dtype) for one in all_values(kind, (2 * hvd.size(), 3))]
    splits = list(range(hvd.size()))
    start, end = sum(range(hvd.rank())), sum(range(hvd.rank() + 1))

    def run(x: tf.Tensor) -> tuple:
        return (
            hvd.gather(x[: hvd.rank()], 0),
            hvd.scatter(x, 0),
            hvd.scatter(x, hvd.size() - 1, splits),
        )

    gathered, even, by_splits = call(mode, run, every[hvd.rank()])
    if hvd.rank() == 0:
        check(gathered, np.concatenate([one[:rank] for rank, one in enumerate(every)]))
    else:
        assert gathered.shape == [0, 3]
    check(even, np.array_split(every[0], hvd.size())[hvd.rank()])
    check(by_splits, np.asarray(every[-1])[start:end])


@MODES
def test_reducescatter_with_splits(mode: str) -> None:
    inputs = all_values("int32", (2 * hvd.size(), 3))
    splits = [0] * (hvd.size() - 1) + [2 * hvd.size()]

    def run(x: tf.Tensor) -> list[tf.Tensor]:
        return hvd.grouped_reducescatter([x, x], op=hvd.Max, splits=splits)

    first = sum(splits[: hvd.rank()])
    expected = reduced(inputs, "Max")[first : first + splits[hvd.rank()]]
    for result in call(mode, run, inputs[hvd.rank()]):
        check(result, expected)


def test_shapes_of_a_graph() -> None:
    shapes = []

    @tf.function(input_signature=[tf.TensorSpec([None, 5, 2])])
    def run(x: tf.Tensor) -> None:
        results = hvd.gather(x, 0), hvd.scatter(x, 0), hvd.reduce(x, 0)
        shapes.extend(one.shape.as_list() for one in results)

    run.get_concrete_function()
    assert shapes == [[None, 5, 2]] * 2 + [[None, 5, 2] if hvd.rank() == 0 else [0]]


@pytest.mark.usefixtures("need_ranks")
@MODES
def test_roots_that_differ(mode: str) -> None:
    for operation in (hvd.reduce, hvd.gather, hvd.scatter):
        with pytest.raises(tf.errors.FailedPreconditionError, match="root 1"):
            call(mode, lambda x, run=operation: run(x, int(hvd.rank() == 0)), tf.ones([3]))
