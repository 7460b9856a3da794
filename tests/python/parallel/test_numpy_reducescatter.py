"""reducescatter on arrays against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from support.reference import DTYPES, OPS, SUM, check_reduced, defined, values

import horoscale.numpy as hvd

ROWS = (0, 1, 3, 8, 1001)

MATRIX = [
    pytest.param(
        dtype,
        op,
        rows,
        id=f"reducescatter-{op}-{dtype}-n{rows}",
        marks=pytest.mark.conformance if rows == 3 else (),
    )
    for op in OPS
    for dtype in DTYPES
    for rows in ROWS
    if defined(dtype, op)
]


def own_rows(rows: int) -> slice:
    """The rows of this rank: lower ranks have one more if the number isn't divisible."""
    parts = np.array_split(np.arange(rows), hvd.size())
    first = sum(len(part) for part in parts[: hvd.rank()])
    return slice(first, first + len(parts[hvd.rank()]))


def all_values(dtype: str, shape: tuple[int, ...], seed: int = 0) -> list[np.ndarray]:
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    return [values(dtype, shape, rank, seed) for rank in range(hvd.size())]


@pytest.mark.parametrize(("dtype", "op", "rows"), MATRIX)
def test_reducescatter(dtype: str, op: str, rows: int, name: str) -> None:
    inputs = all_values(dtype, (rows, 37))
    result = hvd.reducescatter(inputs[hvd.rank()], op=getattr(hvd, op), name=name)
    check_reduced(result, [one[own_rows(rows)] for one in inputs], op)


@pytest.mark.conformance
def test_larger_than_several_chunks(name: str) -> None:
    inputs = all_values("float32", (300_007,))
    result = hvd.reducescatter(inputs[hvd.rank()], op=hvd.Sum, name=name)
    check_reduced(result, [one[own_rows(300_007)] for one in inputs], SUM)


def test_group(name: str) -> None:
    specs = [("float32", (10, 3)), ("int64", (1,)), ("float64", (0, 2)), ("float16", (1000,))]
    inputs = [all_values(dtype, shape, seed=i) for i, (dtype, shape) in enumerate(specs)]
    own = [one[hvd.rank()] for one in inputs]
    handle = hvd.grouped_reducescatter_async(own, op=hvd.Sum, name=f"{name}.async")
    for results in (
        hvd.grouped_reducescatter(own, op=hvd.Sum, name=name),
        hvd.synchronize(handle),
    ):
        for result, expected in zip(results, inputs, strict=True):
            check_reduced(result, [one[own_rows(len(one))] for one in expected], SUM)


def test_scale_factors_and_default_average(name: str) -> None:
    own = np.full((hvd.size(), 2), 2.0 * (hvd.rank() + 1))
    handle = hvd.reducescatter_async(own, name=name, prescale_factor=0.5, postscale_factor=3.0)
    mean = 3 * sum(range(1, hvd.size() + 1)) / hvd.size()
    np.testing.assert_allclose(hvd.synchronize(handle), np.full((1, 2), mean))


def test_bitwise_operators_of_floats(name: str) -> None:
    with pytest.raises(NotImplementedError, match="BitwiseXor of float64"):
        hvd.reducescatter(np.ones(4), op=hvd.BitwiseXor, name=name)


@pytest.mark.conformance
@pytest.mark.parametrize("op", ["Average", "Sum", "Max", "BitwiseOr"])
def test_splits(op: str, name: str) -> None:
    """All rows for each rank in turn; rows that increase with the rank, some with none."""
    size = hvd.size()
    given = [[40 * (rank == one) for rank in range(size)] for one in range(size)]
    for i, splits in enumerate([*given, [3 * rank for rank in range(size)], [0] * size]):
        inputs = all_values("int32", (sum(splits), 7), seed=i)
        first = sum(splits[: hvd.rank()])
        own = slice(first, first + splits[hvd.rank()])
        result = hvd.reducescatter(
            inputs[hvd.rank()], op=getattr(hvd, op), name=name, splits=splits
        )
        check_reduced(result, [one[own] for one in inputs], op)
        handle = hvd.grouped_reducescatter_async(
            [inputs[hvd.rank()]] * 2, op=hvd.Sum, name=f"{name}.group", splits=np.array(splits)
        )
        single = hvd.reducescatter_async(
            inputs[hvd.rank()], op=hvd.Sum, name=f"{name}.async", splits=splits
        )
        for part in [*hvd.synchronize(handle), hvd.synchronize(single)]:
            check_reduced(part, [one[own] for one in inputs], SUM)


@pytest.mark.parametrize(
    ("extra", "match"), [([1], "elements"), ([], "covers"), ([-1], "negative")]
)
def test_wrong_splits(extra: list[int], match: str, name: str) -> None:
    splits = [1] * (hvd.size() - (match == "negative")) + extra
    with pytest.raises(ValueError, match=match):
        hvd.reducescatter(np.ones(hvd.size() + 1), name=name, splits=splits)


@pytest.mark.usefixtures("need_ranks")
def test_mismatch_of_splits(name: str) -> None:
    splits = [1] * hvd.size()
    if hvd.rank() == 0:
        splits[0], splits[-1] = 2, 0
    with pytest.raises(hvd.MismatchError, match="rank 0: splits \\[2, "):
        hvd.reducescatter(np.ones(hvd.size()), name=name, splits=splits)
    with pytest.raises(hvd.MismatchError, match="no splits"):
        hvd.reducescatter(
            np.ones(hvd.size()), name=name, splits=splits if hvd.rank() == 0 else None
        )


def test_needs_rows(name: str) -> None:
    with pytest.raises(ValueError, match="dimension"):
        hvd.reducescatter(np.float32(1), name=name)


@pytest.mark.usefixtures("need_ranks")
def test_mismatch(name: str) -> None:
    with pytest.raises(hvd.MismatchError, match="test_mismatch"):
        hvd.reducescatter(np.ones(3 + (hvd.rank() == 0)), name=name)


@pytest.mark.conformance
@pytest.mark.parametrize("rows", [0, 1, 3, 1001, 200_003])
def test_into_out(rows: int, name: str) -> None:
    inputs = all_values("float32", (rows, 3))
    own = inputs[hvd.rank()].copy()
    part = own_rows(rows)
    around = np.full((part.stop - part.start + 2, 3), 77, np.float32)
    out = around[1:-1]
    assert hvd.reducescatter(own, op=hvd.Sum, name=name, out=out) is out
    check_reduced(out, [one[part] for one in inputs], SUM)
    assert (around[[0, -1]] == 77).all()
    # In place of this rank's rows.
    handle = hvd.reducescatter_async(own, op=hvd.Sum, name=f"{name}.async", out=own[part])
    check_reduced(hvd.synchronize(handle), [one[part] for one in inputs], SUM)
    others = np.delete(np.arange(rows), np.arange(part.start, part.stop))
    assert (own[others] == inputs[hvd.rank()][others]).all()


@pytest.mark.conformance
@pytest.mark.parametrize("op", ["Average", "Max", "BitwiseXor"])
def test_splits_into_out(op: str, name: str) -> None:
    """Small, and large enough to be read from the ranks' memory."""
    for i, most in enumerate([1, 90_001]):
        splits = [most * (rank + i) for rank in range(hvd.size())]
        inputs = all_values("int32", (sum(splits), 3), seed=i)
        first = sum(splits[: hvd.rank()])
        own = slice(first, first + splits[hvd.rank()])
        out = np.empty((splits[hvd.rank()], 3), np.int32)
        result = hvd.reducescatter(
            inputs[hvd.rank()], op=getattr(hvd, op), name=name, splits=splits, out=out
        )
        assert result is out
        check_reduced(out, [one[own] for one in inputs], op)
        with pytest.raises(ValueError, match="shape"):
            hvd.reducescatter(
                inputs[hvd.rank()], op=hvd.Sum, name=name, splits=splits, out=np.repeat(out, 2, 1)
            )


def test_group_into_out(name: str) -> None:
    own = [np.ones((hvd.size(), 2), np.float32), np.ones(2 * hvd.size(), np.int64)]
    out = [np.empty((1, 2), np.float32), np.empty(2, np.int64)]
    results = hvd.grouped_reducescatter(own, op=hvd.Sum, name=name, out=out)
    for result, one in zip(results, out, strict=True):
        assert result is one
        assert (one == hvd.size()).all()
