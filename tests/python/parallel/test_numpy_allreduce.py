"""allreduce on arrays: every operator, type and size against numpy, and errors."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.reference import (
    AVERAGE,
    DTYPES,
    INTEGERS,
    OPS,
    SIZES,
    SUM,
    check_reduced,
    defined,
    numpy_dtype,
    values,
)

import horoscale.numpy as hvd

MATRIX = [
    pytest.param(
        dtype,
        op,
        n,
        id=f"allreduce-{op}-{dtype}-n{n}",
        marks=pytest.mark.conformance if n == 3 else (),
    )
    for op in OPS
    for dtype in DTYPES
    for n in SIZES
    if defined(dtype, op)
]


def all_values(dtype: str, shape: int | tuple[int, ...], seed: int = 0) -> list[np.ndarray]:
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    return [values(dtype, shape, rank, seed) for rank in range(hvd.size())]


def assert_same_on_all_ranks(array: np.ndarray, name: str) -> None:
    digests = hvd.allgather_object(hashlib.sha256(array.tobytes()).hexdigest(), name=f"{name}.same")
    assert len(set(digests)) == 1, digests


@pytest.mark.parametrize(("dtype", "op", "n"), MATRIX)
def test_allreduce(dtype: str, op: str, n: int, name: str) -> None:
    inputs = all_values(dtype, n)
    own = inputs[hvd.rank()]
    before = own.copy()
    result = hvd.allreduce(own, op=getattr(hvd, op), name=name)
    check_reduced(result, inputs, op)
    assert own.tobytes() == before.tobytes()
    assert_same_on_all_ranks(result, name)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_in_place(dtype: str, n: int, name: str) -> None:
    inputs = all_values(dtype, n)
    own = inputs[hvd.rank()].copy()
    result = hvd.allreduce_(own, op=hvd.Sum, name=name)
    assert result is own
    check_reduced(own, inputs, SUM)


@pytest.mark.conformance
@pytest.mark.parametrize("n", SIZES)
def test_in_place_in_shared_memory(n: int, name: str) -> None:
    inputs = all_values("float32", n)
    shared = hvd.empty_shared(n, dtype=np.float32)
    for repetition in range(3):
        shared[:] = inputs[hvd.rank()]
        hvd.allreduce_(shared, op=hvd.Sum, name=f"{name}.{repetition}")
        check_reduced(shared, inputs, SUM)


@pytest.mark.conformance
@pytest.mark.parametrize("shape", [(), (1,), (2, 0, 3), (3, 5, 7)], ids=str)
def test_shapes(shape: tuple[int, ...], name: str) -> None:
    inputs = all_values("float32", shape)
    result = hvd.allreduce(inputs[hvd.rank()], op=hvd.Sum, name=name)
    assert result.shape == shape
    check_reduced(result, [np.asarray(one) for one in inputs], SUM)


def layouts(array: np.ndarray) -> dict[str, np.ndarray]:
    """The same values in noncontiguous layouts."""
    wide = np.zeros((array.shape[0], 2 * array.shape[1]), array.dtype)
    wide[:, ::2] = array
    return {
        "transposed": np.ascontiguousarray(array.T).T,
        "strided": wide[:, ::2],
        "reversed": np.ascontiguousarray(array[::-1])[::-1],
    }


@pytest.mark.parametrize("layout", ["transposed", "strided", "reversed"])
@pytest.mark.parametrize("in_place", [False, True], ids=["new", "in_place"])
def test_not_contiguous(layout: str, in_place: bool, name: str) -> None:
    inputs = all_values("float64", (40, 30))
    own = layouts(inputs[hvd.rank()].copy())[layout]
    function = hvd.allreduce_ if in_place else hvd.allreduce
    result = function(own, op=hvd.Sum, name=name)
    check_reduced(np.ascontiguousarray(result), inputs, SUM)
    assert (result is own) == in_place


def test_broadcast_view_as_input(name: str) -> None:
    own = np.broadcast_to(np.float32(hvd.rank()), (100, 3))
    result = hvd.allreduce(own, op=hvd.Sum, name=name)
    np.testing.assert_array_equal(result, np.full((100, 3), sum(range(hvd.size())), np.float32))


@pytest.mark.conformance
def test_many_at_once_in_an_order_of_each_ranks_own(name: str) -> None:
    count = 200
    order = np.random.default_rng(hvd.rank()).permutation(count)
    inputs = {i: all_values("float32", 1 + i * 37 % 5000, seed=i) for i in range(count)}
    handles = {
        i: hvd.allreduce_async(
            inputs[i][hvd.rank()], op=hvd.Sum, name=f"{name}.{i}", priority=int(i) % 5
        )
        for i in order
    }
    for i, handle in handles.items():
        check_reduced(hvd.synchronize(handle), inputs[i], SUM)
        assert hvd.poll(handle)


def test_dropped_handles_and_arrays_stay_alive_until_done(name: str) -> None:
    result = None
    for i in range(100):
        own = np.full(20_000, hvd.rank(), np.int32)
        result = hvd.allreduce_async_(own, op=hvd.Sum, name=f"{name}.{i}")
        del own
    assert hvd.synchronize(result)[0] == sum(range(hvd.size()))


@pytest.mark.conformance
def test_unnamed_calls_are_matched_by_order() -> None:
    for i in range(50):
        assert hvd.allreduce(np.int64(i), op=hvd.Sum) == i * hvd.size()


def test_the_same_name_again_with_another_shape(name: str) -> None:
    for n in (10, 10, 20, 10, 0, 10):
        result = hvd.allreduce(np.ones(n, np.float32), op=hvd.Sum, name=name)
        np.testing.assert_array_equal(result, np.full(n, hvd.size(), np.float32))


@pytest.mark.conformance
def test_default_is_average(name: str) -> None:
    mean = sum(range(hvd.size())) / hvd.size()
    assert hvd.allreduce(np.float64(hvd.rank()), name=name) == pytest.approx(mean)


@pytest.mark.parametrize(("average", "op"), [(True, AVERAGE), (False, SUM)])
def test_deprecated_average(average: bool, op: str, name: str) -> None:
    inputs = all_values("float32", 10)
    with pytest.warns(DeprecationWarning, match="op="):
        result = hvd.allreduce(inputs[hvd.rank()], average, name)
    check_reduced(result, inputs, op)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "int64"])
def test_scale_factors(dtype: str, name: str) -> None:
    inputs = [
        np.full(5, 2 * rank + 2).astype(values(dtype, 0, 0).dtype) for rank in range(hvd.size())
    ]
    result = hvd.allreduce(
        inputs[hvd.rank()], op=hvd.Sum, name=name, prescale_factor=0.5, postscale_factor=3.0
    )
    total = 3 * sum(rank + 1 for rank in range(hvd.size()))
    assert result.dtype == inputs[0].dtype
    np.testing.assert_array_equal(result.astype(float), np.full(5, total, float))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_average_of_integers_goes_towards_zero(dtype: str, name: str) -> None:
    sign = -1 if np.iinfo(dtype).min < 0 else 1
    own = np.array([sign * (1 if hvd.rank() == 0 else 0), hvd.rank()], dtype)
    result = hvd.allreduce(own, op=hvd.Average, name=name)
    expected = [sign if hvd.size() == 1 else 0, sum(range(hvd.size())) // hvd.size()]
    np.testing.assert_array_equal(result, np.array(expected, dtype))


@pytest.mark.parametrize("op", ["Min", "Max", "Sum"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_nan_spreads(dtype: str, op: str, name: str) -> None:
    for place in range(hvd.size()):
        own = np.ones(67, dtype)
        if hvd.rank() == place:
            own[33] = np.nan
        result = hvd.allreduce(own, op=getattr(hvd, op), name=f"{name}.{place}")
        assert np.isnan(result[33])
        assert np.isfinite(np.delete(result, 33)).all()


@pytest.mark.conformance
@pytest.mark.parametrize("in_place", [False, True], ids=["new", "in_place"])
def test_group_of_several_types(in_place: bool, name: str) -> None:
    specs = [("float32", 1000), ("int64", 3), ("float16", 0), ("bool", 17), ("float32", 70_001)]
    inputs = [all_values(dtype, n, seed=i) for i, (dtype, n) in enumerate(specs)]
    own = [one[hvd.rank()].copy() for one in inputs]
    function = hvd.grouped_allreduce_ if in_place else hvd.grouped_allreduce
    results = function(own, op=hvd.Sum, name=name)
    for result, mine, all_inputs in zip(results, own, inputs, strict=True):
        assert (result is mine) == in_place
        check_reduced(result, all_inputs, SUM)


def test_groups_asynchronously(name: str) -> None:
    inputs = [all_values("float32", 100 * i, seed=i) for i in range(5)]
    own = [one[hvd.rank()] for one in inputs]
    new = hvd.grouped_allreduce_async(own, op=hvd.Sum, name=f"{name}.new")
    copies = [one.copy() for one in own]
    in_place = hvd.grouped_allreduce_async_(copies, op=hvd.Sum, name=f"{name}.in_place")
    for result, other, expected in zip(
        hvd.synchronize(new), hvd.synchronize(in_place), inputs, strict=True
    ):
        check_reduced(result, expected, SUM)
        check_reduced(other, expected, SUM)


@pytest.mark.parametrize("kind", ["none", "fp16", "bf16"])
def test_compression(kind: str, name: str) -> None:
    own = np.arange(8, dtype=np.float32) * (hvd.rank() + 1)
    compression = getattr(hvd.Compression, kind)
    result = hvd.allreduce(own, op=hvd.Sum, name=name, compression=compression)
    total = sum(range(1, hvd.size() + 1))
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, np.arange(8) * total)
    (whole,) = hvd.grouped_allreduce(
        [np.array([5])], op=hvd.Max, name=f"{name}.int", compression=compression
    )
    assert whole.dtype == np.int64


def test_compression_rounds_nothing_within_a_host(name: str) -> None:
    inputs = [values("float32", 100_003, rank) for rank in range(hvd.size())]
    result = hvd.allreduce(
        inputs[hvd.rank()], op=hvd.Sum, name=name, compression=hvd.Compression.fp16
    )
    check_reduced(result, inputs, SUM)


def test_a_compressor_of_the_users_own_is_called(name: str) -> None:
    class Quarters(hvd.Compression.none):  # type: ignore[misc]
        """Sends whole numbers of quarters."""

        @staticmethod
        def compress(tensor: np.ndarray) -> tuple[np.ndarray, np.dtype[Any]]:
            return np.round(4 * tensor).astype(np.int32), tensor.dtype

        @staticmethod
        def decompress(tensor: np.ndarray, ctx: np.dtype[Any]) -> np.ndarray:
            return (tensor / 4).astype(ctx)

    own = np.array([0.3, 1.0], np.float32)
    result = hvd.allreduce(own, op=hvd.Sum, name=name, compression=Quarters)
    np.testing.assert_array_equal(result, np.array([0.25, 1.0], np.float32) * hvd.size())


def differing_arguments() -> dict[str, tuple[np.ndarray, dict[str, object]]]:
    """Rank 0's error, while the others reduce ten float32 by Sum."""
    ten = np.ones(10, np.float32)
    return {
        "shape": (np.ones(11, np.float32), {}),
        "dims": (np.ones((2, 5), np.float32), {}),
        "dtype": (np.ones(10, np.float64), {}),
        "op": (ten, {"op": hvd.Max}),
        "prescale": (ten, {"prescale_factor": 2.0}),
        "compression": (ten, {"compression": hvd.Compression.bf16}),
    }


@pytest.mark.conformance
@pytest.mark.usefixtures("need_ranks")
@pytest.mark.parametrize("what", ["shape", "dims", "dtype", "op", "prescale", "compression"])
def test_mismatch_is_told_to_every_rank_and_the_job_goes_on(what: str, name: str) -> None:
    array, arguments = np.ones(10, np.float32), {}
    if hvd.rank() == 0:
        array, arguments = differing_arguments()[what]
    with pytest.raises(hvd.MismatchError) as caught:
        hvd.allreduce(array, **{"op": hvd.Sum, "name": name, **arguments})
    assert name in str(caught.value)
    if what == "compression":
        assert "rank 0: compressed to bfloat16" in str(caught.value)
    again = hvd.allreduce(np.ones(10, np.float32), op=hvd.Sum, name=name)
    np.testing.assert_array_equal(again, np.full(10, hvd.size(), np.float32))


@pytest.mark.usefixtures("need_ranks")
def test_mismatch_of_kinds(name: str) -> None:
    start = hvd.allreduce_async
    if hvd.rank() == 0:
        start = partial(hvd.broadcast_async, root_rank=0)
    with pytest.raises(hvd.MismatchError, match="broadcast"):
        hvd.synchronize(start(np.ones(3), name=name))


@pytest.mark.usefixtures("need_ranks")
def test_duplicate_name(name: str) -> None:
    if hvd.rank() == 0:
        first = hvd.allreduce_async(np.ones(3), op=hvd.Sum, name=name)
        with pytest.raises(hvd.DuplicateNameError, match="test_duplicate_name"):
            hvd.allreduce_async(np.ones(3), op=hvd.Sum, name=name)
        hvd.barrier()
        result = hvd.synchronize(first)
    else:
        hvd.barrier()  # rank 0's first call is certainly pending until then
        result = hvd.allreduce(np.ones(3), op=hvd.Sum, name=name)
    np.testing.assert_array_equal(result, np.full(3, hvd.size()))


def test_names_of_any_text() -> None:
    for name in ("a" * 10_000, "näme\n'\"\\{}%s", "tensor.😀", " "):
        assert hvd.allreduce(np.int32(1), op=hvd.Sum, name=name) == hvd.size()


@pytest.mark.conformance
def test_the_same_operation_again_hits_the_cache(name: str) -> None:
    hvd.allreduce(np.ones(10), name=name)
    before = hvd.metrics()["process_sets"]["0"]
    for _ in range(5):
        hvd.allreduce(np.ones(10), name=name)
    after = hvd.metrics()["process_sets"]["0"]
    counters = ("operations", "cache_hits", "cache_misses", "bytes")
    gained = {counter: after[counter] - before[counter] for counter in counters}
    assert gained["operations"] == gained["cache_hits"] == 5
    assert gained["cache_misses"] == 0
    assert gained["bytes"] == 5 * 80


def test_bfloat16_is_a_type_of_the_matrix() -> None:
    pytest.importorskip("ml_dtypes")
    assert numpy_dtype("bfloat16").itemsize == 2
