"""op=Adasum on arrays, against the formula in numpy, and its guarantees."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from support.adasum import adasum
from support.reference import numpy_dtype

import horoscale.numpy as hvd

TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-6, "float64": 1e-12}
SIZES = [0, 1, 15, 17, 1000, 70_001]

pytestmark = pytest.mark.conformance


def vectors(count: int, size: int, dtype: str, seed: int = 0) -> list[np.ndarray]:
    """Vectors that are neither parallel nor orthogonal, the same on all ranks."""
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    random = np.random.default_rng(seed)
    common = random.normal(size=size)
    return [
        (common + random.normal(size=size) * (1 + i)).astype(numpy_dtype(dtype))
        for i in range(count)
    ]


def check(result: np.ndarray, expected: np.ndarray, dtype: str) -> None:
    assert result.dtype == numpy_dtype(dtype)
    assert result.shape == expected.shape
    wide = result.astype(np.float64)
    scale = np.abs(expected).max(initial=0.0)
    np.testing.assert_allclose(wide, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * scale)


def check_same(array: np.ndarray, name: str, **options: Any) -> None:
    digest = hashlib.sha256(array.tobytes()).hexdigest()
    assert len(set(hvd.allgather_object(digest, name=f"{name}.same", **options))) == 1


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_equals_the_formula(dtype: str, size: int, name: str) -> None:
    inputs = vectors(hvd.size(), size, dtype)
    own = inputs[hvd.rank()]
    before = own.copy()
    result = hvd.allreduce(own, op=hvd.Adasum, name=name)
    check(result, adasum(inputs), dtype)
    assert own.tobytes() == before.tobytes()
    check_same(result, name)
    hvd.allreduce_(own, op=hvd.Adasum, name=f"{name}.in_place")
    assert own.tobytes() == result.tobytes()


def test_a_large_tensor_is_not_cut(name: str) -> None:
    size = 5_000_003  # more than PARTITION_BYTES
    inputs = vectors(hvd.size(), size, "float32")
    result = hvd.allreduce(inputs[hvd.rank()], op=hvd.Adasum, name=name)
    check(result, adasum(inputs), "float32")
    check_same(result, name)


def test_orthogonal_vectors_are_added_parallel_ones_averaged(name: str) -> None:
    size = hvd.size()
    mine = np.zeros(size * 40, np.float32)
    mine[hvd.rank() * 40 : (hvd.rank() + 1) * 40] = np.arange(1, 41)
    result = hvd.allreduce(mine, op=hvd.Adasum, name=f"{name}.orthogonal")
    np.testing.assert_array_equal(result, np.tile(np.arange(1, 41, dtype=np.float32), size))
    same = np.arange(1, 1001, dtype=np.float32)
    result = hvd.allreduce(same, op=hvd.Adasum, name=f"{name}.equal")
    np.testing.assert_allclose(result, same, rtol=1e-6)


def test_two_parallel_vectors_are_averaged(name: str) -> None:
    same = np.linspace(-1, 1, 333, dtype=np.float64)
    result = hvd.allreduce(same * (hvd.rank() + 1), op=hvd.Adasum, name=name)
    expected = adasum([same * (rank + 1) for rank in range(hvd.size())])
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-15)
    if hvd.size() == 2:
        np.testing.assert_allclose(result, 1.5 * same, rtol=1e-12, atol=1e-15)


def test_zeros_leave_the_others_as_they_are(name: str) -> None:
    values = np.arange(1, 100, dtype=np.float32)
    last = hvd.size() - 1
    mine = values if hvd.rank() == last else np.zeros_like(values)
    result = hvd.allreduce(mine, op=hvd.Adasum, name=name)
    np.testing.assert_array_equal(result, values)
    zeros = np.zeros_like(values)
    result = hvd.allreduce(zeros, op=hvd.Adasum, name=f"{name}.none")
    np.testing.assert_array_equal(result, zeros)


def test_what_is_not_finite_spreads_to_its_tensor(name: str) -> None:
    values = np.ones(100, np.float32)
    values[3] = np.nan
    results = hvd.grouped_allreduce([values, np.ones(5, np.float32)], op=hvd.Adasum, name=name)
    assert np.isnan(results[0]).all() or hvd.size() == 1
    np.testing.assert_allclose(results[1], np.ones(5), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_scale_factors(dtype: str, name: str) -> None:
    inputs = vectors(hvd.size(), 321, dtype)
    result = hvd.allreduce(
        inputs[hvd.rank()], op=hvd.Adasum, prescale_factor=0.5, postscale_factor=3.0, name=name
    )
    check(result, 1.5 * adasum(inputs), dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_each_tensor_of_a_group_has_its_own_weights(dtype: str, name: str) -> None:
    sizes = [3, 0, 1000, 1, 64, 12_345, *([5] * 40)]
    groups = [vectors(hvd.size(), size, dtype, seed) for seed, size in enumerate(sizes)]
    results = hvd.grouped_allreduce(
        [group[hvd.rank()] for group in groups], op=hvd.Adasum, name=name
    )
    for i, (result, group) in enumerate(zip(results, groups, strict=True)):
        check(result, adasum(group), dtype)
        alone = hvd.allreduce(group[hvd.rank()], op=hvd.Adasum, name=f"{name}.{i}")
        assert alone.tobytes() == result.tobytes()


def test_many_at_once_are_as_one_by_one(name: str) -> None:
    groups = [vectors(hvd.size(), 100 + seed, "float32", seed) for seed in range(20)]
    handles = [
        hvd.allreduce_async(group[hvd.rank()], op=hvd.Adasum, name=f"{name}.{i}")
        for i, group in enumerate(groups)
    ]
    for i, (handle, group) in enumerate(zip(handles, groups, strict=True)):
        together = hvd.synchronize(handle)
        alone = hvd.allreduce(group[hvd.rank()], op=hvd.Adasum, name=f"{name}.alone.{i}")
        assert together.tobytes() == alone.tobytes()


def test_process_sets_of_every_smaller_size(name: str) -> None:
    for count in range(1, hvd.size()):
        ranks = list(range(hvd.size() - count, hvd.size()))
        subset = hvd.add_process_set(ranks)
        if hvd.rank() in ranks:
            inputs = vectors(count, 777, "float32", count)
            mine = inputs[ranks.index(hvd.rank())]
            result = hvd.allreduce(mine, op=hvd.Adasum, process_set=subset, name=f"{name}.{count}")
            check(result, adasum(inputs), "float32")
            check_same(result, f"{name}.{count}", process_set=subset)
        hvd.remove_process_set(subset)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_ranks_that_have_joined_count_as_zeros(dtype: str, name: str) -> None:
    size = 4567
    inputs = vectors(hvd.size(), size, dtype)
    for joined in range(1, hvd.size()):
        if hvd.rank() >= joined:
            given = [one if r >= joined else np.zeros_like(one) for r, one in enumerate(inputs)]
            result = hvd.allreduce(inputs[hvd.rank()], op=hvd.Adasum, name=f"{name}.{joined}")
            check(result, adasum(given), dtype)
        hvd.join()


@pytest.mark.parametrize("dtype", ["int32", "bool", "complex64", "uint8"])
def test_other_types_are_refused(dtype: str) -> None:
    with pytest.raises(NotImplementedError, match="Adasum"):
        hvd.allreduce(np.ones(3, dtype), op=hvd.Adasum)


def test_other_collectives_refuse_it() -> None:
    ones = np.ones(hvd.size(), np.float32)
    with pytest.raises(
        NotImplementedError, match="Adasum is not supported here, only by allreduce"
    ):
        hvd.reducescatter(ones, op=hvd.Adasum)
    with pytest.raises(NotImplementedError, match="Adasum"):
        hvd.reducescatter_async(ones, op=hvd.Adasum)
    with pytest.raises(NotImplementedError, match="Adasum"):
        hvd.reduce(ones, 0, op=hvd.Adasum)
