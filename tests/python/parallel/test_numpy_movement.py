"""allgather, broadcast and alltoall on arrays against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from support.reference import DTYPES, SIZES, numpy_dtype, values

import horoscale.numpy as hvd


def matrix(operation: str) -> list:
    return [
        pytest.param(
            dtype,
            n,
            id=f"{operation}-{dtype}-n{n}",
            marks=pytest.mark.conformance if n == 3 else (),
        )
        for dtype in DTYPES
        for n in SIZES
    ]


def input_of(rank: int, dtype: str, shape: int | tuple[int, ...]) -> np.ndarray:
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    return values(dtype, shape, rank)


def assert_same_bits(result: np.ndarray, expected: np.ndarray) -> None:
    assert result.dtype == expected.dtype
    assert result.shape == expected.shape
    assert result.tobytes() == expected.tobytes()


@pytest.mark.parametrize(("dtype", "n"), matrix("allgather"))
def test_allgather(dtype: str, n: int, name: str) -> None:
    inputs = [input_of(rank, dtype, n) for rank in range(hvd.size())]
    result = hvd.allgather(inputs[hvd.rank()], name=name)
    assert_same_bits(result, np.concatenate(inputs))
    result[:] = 0  # the array owns its memory


@pytest.mark.conformance
@pytest.mark.parametrize("row_shape", [(), (1,), (5, 3), (0,)], ids=str)
def test_allgather_of_unequal_rows(row_shape: tuple[int, ...], name: str) -> None:
    for repetition in range(3):
        rows = [(rank * 7 + repetition) % 5 * 100 for rank in range(hvd.size())]
        inputs = [values("int32", (rows[rank], *row_shape), rank) for rank in range(hvd.size())]
        result = hvd.allgather(inputs[hvd.rank()], name=name)
        assert_same_bits(result, np.concatenate(inputs))


def test_allgather_where_only_one_rank_gives(name: str) -> None:
    for giver in range(hvd.size()):
        own = np.arange(3 if hvd.rank() == giver else 0)
        np.testing.assert_array_equal(hvd.allgather(own, name=name), [0, 1, 2])


@pytest.mark.conformance
def test_allgather_group(name: str) -> None:
    def inputs(rank: int) -> list[np.ndarray]:
        return [
            values("float32", (rank, 4), rank),
            values("uint8", 1000, rank),
            values("complex64", (2, 2), rank),
        ]

    expected = [
        np.concatenate(parts) for parts in zip(*map(inputs, range(hvd.size())), strict=True)
    ]
    handle = hvd.grouped_allgather_async(inputs(hvd.rank()), name=f"{name}.async")
    for results in (hvd.grouped_allgather(inputs(hvd.rank()), name=name), hvd.synchronize(handle)):
        for result, one in zip(results, expected, strict=True):
            assert_same_bits(result, one)


def test_allgather_asynchronously_of_a_view(name: str) -> None:
    own = np.arange(20).reshape(4, 5)[:, ::2]
    result = hvd.synchronize(hvd.allgather_async(own, name=name))
    np.testing.assert_array_equal(result, np.concatenate([own] * hvd.size()))


def test_allgather_needs_rows(name: str) -> None:
    with pytest.raises(ValueError, match="dimension"):
        hvd.allgather(np.float32(1), name=name)


@pytest.mark.usefixtures("need_ranks")
@pytest.mark.parametrize("what", ["row shape", "dims", "dtype"])
def test_allgather_mismatch(what: str, name: str) -> None:
    own = np.ones((3, 4), np.float32)
    if hvd.rank() == hvd.size() - 1:
        own = {"row shape": own[:, :2], "dims": own[0], "dtype": own.astype(int)}[what]
    with pytest.raises(hvd.MismatchError, match="test_allgather_mismatch"):
        hvd.allgather(own, name=name)
    assert hvd.allgather(np.ones(1), name=name).shape == (hvd.size(),)


@pytest.mark.parametrize(("dtype", "n"), matrix("broadcast"))
def test_broadcast(dtype: str, n: int, name: str) -> None:
    for root in range(hvd.size()):
        own = input_of(hvd.rank(), dtype, n)
        result = hvd.broadcast(own, root_rank=root, name=name)
        assert_same_bits(result, input_of(root, dtype, n))
        assert_same_bits(own, input_of(hvd.rank(), dtype, n))


@pytest.mark.conformance
@pytest.mark.parametrize("n", SIZES)
def test_broadcast_in_place(n: int, name: str) -> None:
    root = hvd.size() - 1
    own = values("float32", n, hvd.rank())
    assert hvd.broadcast_(own, root_rank=root, name=name) is own
    assert_same_bits(own, values("float32", n, root))
    handle = hvd.broadcast_async_(values("float32", n, hvd.rank()), 0, name=name)
    assert_same_bits(hvd.synchronize(handle), values("float32", n, 0))


def test_broadcast_of_0d_and_strided(name: str) -> None:
    zero_d = hvd.broadcast(np.float64(hvd.rank() + 1), root_rank=0, name=name)
    assert zero_d.shape == ()
    assert zero_d == 1
    whole = np.full((4, 6), hvd.rank(), np.int16)
    hvd.broadcast_(whole[:, ::2], root_rank=0, name=f"{name}.strided")
    assert (whole[:, ::2] == 0).all()
    assert (whole[:, 1::2] == hvd.rank()).all()
    result = hvd.synchronize(hvd.broadcast_async(whole[:, ::2], 0, name=f"{name}.async"))
    assert (result == 0).all()


@pytest.mark.parametrize("root", [-1, 99])
def test_broadcast_root_outside(root: int, name: str) -> None:
    with pytest.raises(ValueError, match=f"root_rank={root}"):
        hvd.broadcast(np.ones(3), root_rank=root, name=name)


@pytest.mark.usefixtures("need_ranks")
def test_broadcast_mismatch_of_roots(name: str) -> None:
    with pytest.raises(hvd.MismatchError, match="root"):
        hvd.broadcast(np.ones(3), root_rank=int(hvd.rank() == 0), name=name)


@pytest.mark.parametrize(("dtype", "n"), matrix("alltoall"))
def test_alltoall(dtype: str, n: int, name: str) -> None:
    """Rank a sends n + a * 3 + b rows to rank b, plus two unsent rows."""
    size, me = hvd.size(), hvd.rank()

    def splits(rank: int) -> list[int]:
        return [n // size + rank * 3 + b for b in range(size)]

    def part(sender: int, receiver: int) -> np.ndarray:
        array = input_of(sender, dtype, (sum(splits(sender)) + 2, 2))
        first = sum(splits(sender)[:receiver])
        return array[first : first + splits(sender)[receiver]]

    own = input_of(me, dtype, (sum(splits(me)) + 2, 2))
    result, received = hvd.alltoall(own, splits=np.array(splits(me), np.int32), name=name)
    assert_same_bits(result, np.concatenate([part(sender, me) for sender in range(size)]))
    assert received.dtype == np.int32
    np.testing.assert_array_equal(received, [splits(sender)[me] for sender in range(size)])


@pytest.mark.conformance
def test_alltoall_evenly(name: str) -> None:
    size, me = hvd.size(), hvd.rank()
    own = np.arange(2 * size) + 1000 * me
    result = hvd.alltoall(own, name=name)
    expected = [1000 * sender + 2 * me + i for sender in range(size) for i in range(2)]
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(hvd.synchronize(hvd.alltoall_async(own, name=name)), expected)


@pytest.mark.parametrize("dtype", [*"bBhHiIlLqQ", "mixed"])
def test_alltoall_with_splits_of_any_integer_type(dtype: str, name: str) -> None:
    mixed = [(np.uint64, np.int8, int)[i % 3](1) for i in range(hvd.size())]
    splits = mixed if dtype == "mixed" else np.ones(hvd.size(), dtype)
    result, received = hvd.alltoall(np.arange(hvd.size()) + 10 * hvd.rank(), splits, name=name)
    np.testing.assert_array_equal(result, np.arange(hvd.size()) * 10 + hvd.rank())
    np.testing.assert_array_equal(received, [1] * hvd.size())


def test_alltoall_of_nothing(name: str) -> None:
    result, received = hvd.alltoall(
        np.empty((0, 3), np.float32), splits=[0] * hvd.size(), name=name
    )
    assert result.shape == (0, 3)
    assert received.tolist() == [0] * hvd.size()


def test_alltoall_wrong_splits(name: str) -> None:
    own = np.ones((hvd.size(), 2))
    zeros = [0] * hvd.size()
    for splits, message in (
        ([*zeros, 0], "elements"),
        ([-1, *zeros[1:]], "negative"),
        ([hvd.size() + 1, *zeros[1:]], "rows"),
        ([[0]], "1-d"),
        ([0.5] * hvd.size(), "integers"),
    ):
        with pytest.raises(ValueError, match=message):
            hvd.alltoall(own, splits=splits, name=name)
    if hvd.size() > 1:
        with pytest.raises(ValueError, match="evenly"):
            hvd.alltoall(np.ones(hvd.size() + 1), name=name)


def test_dtypes_are_known() -> None:
    for dtype in DTYPES:
        if dtype != "bfloat16":
            assert numpy_dtype(dtype).name == dtype


ROWS_OF_OUT = pytest.mark.parametrize("rows", [0, 1, 3, 1001, 100_003], ids=str)


def into_sentinel(shape: tuple[int, ...], dtype: object) -> tuple[np.ndarray, np.ndarray]:
    """An array for a result, and the surrounding one with unused first and last rows."""
    around = np.full((shape[0] + 2, *shape[1:]), 77, dtype)
    return around[1:-1], around


def assert_sentinel(around: np.ndarray) -> None:
    assert (around[[0, -1]] == 77).all()


@pytest.mark.conformance
@ROWS_OF_OUT
@pytest.mark.parametrize("row_shape", [(), (3,), (0,)], ids=str)
def test_allgather_into_out(rows: int, row_shape: tuple[int, ...], name: str) -> None:
    inputs = [values("int32", (rows + rank, *row_shape), rank) for rank in range(hvd.size())]
    expected = np.concatenate(inputs)
    for repetition in range(2):
        out, around = into_sentinel(expected.shape, np.int32)
        if repetition == 0:
            assert hvd.allgather(inputs[hvd.rank()], name=name, out=out) is out
        else:
            handle = hvd.allgather_async(inputs[hvd.rank()], name=name, out=out)
            assert hvd.synchronize(handle) is out
        assert_same_bits(out, expected)
        assert_sentinel(around)


def test_allgather_of_rows_that_lie_in_out(name: str) -> None:
    rows = 50_000
    out = np.zeros(rows * hvd.size(), np.float32)
    own = out[rows * hvd.rank() : rows * (hvd.rank() + 1)]
    own[:] = np.arange(rows) + hvd.rank()
    hvd.allgather(own, name=name, out=out)
    expected = [np.arange(rows, dtype=np.float32) + rank for rank in range(hvd.size())]
    assert_same_bits(out, np.concatenate(expected))


def test_allgather_group_into_out(name: str) -> None:
    inputs = [np.full((rows, 2), hvd.rank(), np.int16) for rows in (1, 0, 40_000)]
    out = [np.empty((len(one) * hvd.size(), 2), np.int16) for one in inputs]
    for results in (
        hvd.grouped_allgather(inputs, name=name, out=out),
        hvd.synchronize(hvd.grouped_allgather_async(inputs, name=f"{name}.async", out=out)),
    ):
        for result, one, given in zip(results, out, inputs, strict=True):
            assert result is one
            assert_same_bits(
                one[:, 0], np.repeat(np.arange(hvd.size(), dtype=np.int16), len(given))
            )


@pytest.mark.parametrize("rows", [0, 3, 40_000])
def test_out_with_other_rows_fails_on_this_rank_alone(rows: int, name: str) -> None:
    own = np.full((rows, 2), hvd.rank(), np.int64)
    total = rows * hvd.size()
    wrong = total + 1 if hvd.rank() == 0 else total
    for operation in (hvd.allgather, hvd.alltoall):
        count = rows - rows % hvd.size() if operation is hvd.alltoall else rows
        fits = count if operation is hvd.alltoall else total
        out, around = into_sentinel((fits + (wrong - total), 2), np.int64)
        out[:] = 77
        if hvd.rank() == 0:
            with pytest.raises(ValueError, match=rf"\({fits}, 2\).*\({fits + 1}, 2\)"):
                operation(own[:count], name=f"{name}.{operation.__name__}", out=out)
            assert (around == 77).all()
        else:
            assert operation(own[:count], name=f"{name}.{operation.__name__}", out=out) is out
        assert_sentinel(around)
    assert hvd.allgather(own, name=name).shape == (total, 2)  # the set still works


@pytest.mark.parametrize("operation", ["allgather", "alltoall", "reducescatter"])
def test_out_that_can_not_be(operation: str, name: str) -> None:
    own = np.zeros((hvd.size() * 2, 3), np.float32)
    call = getattr(hvd, operation)
    frozen = np.zeros_like(own)
    frozen.flags.writeable = False
    for out, message in [
        (np.zeros(own.shape, np.float64), "float64"),
        (np.zeros((2, 4), np.float32), "shape"),
        (np.zeros((), np.float32), "shape"),
        (np.zeros((8, 6), np.float32)[:, ::2], "contiguous"),
        (frozen, "writable"),
    ]:
        with pytest.raises(ValueError, match=message):
            call(own, name=name, out=out)
    with pytest.raises(TypeError):
        call(own, name=name, out=[1.0])
    with pytest.raises(ValueError, match="group of 1"):
        hvd.grouped_allgather([own], name=name, out=[])


@ROWS_OF_OUT
def test_alltoall_into_out(rows: int, name: str) -> None:
    def given(rank: int) -> np.ndarray:
        return values("int32", (rows * hvd.size() + rank, 2), rank)

    splits = [rows] * hvd.size()
    expected = np.concatenate(
        [given(rank)[rows * hvd.rank() :][:rows] for rank in range(hvd.size())]
    )
    out, around = into_sentinel(expected.shape, np.int32)
    result, received = hvd.alltoall(given(hvd.rank()), splits=splits, name=name, out=out)
    assert result is out
    assert received.tolist() == splits
    assert_same_bits(out, expected)
    assert_sentinel(around)
    out[:] = 0
    even = given(hvd.rank())[: rows * hvd.size()]
    assert hvd.synchronize(hvd.alltoall_async(even, name=f"{name}.even", out=out)) is out
    assert_same_bits(out, expected)
    assert_sentinel(around)


def in_memory(form: str, data: np.ndarray) -> np.ndarray:
    """The same values in shared memory, in private memory, or in either depending on the rank."""
    if form == "private" or (form == "mixed" and hvd.rank() % 2):
        return data.copy()
    shared = hvd.empty_shared(data.shape, dtype=data.dtype)
    shared[...] = data
    return shared


@pytest.mark.conformance
@pytest.mark.parametrize("form", ["private", "shared", "mixed"])
@pytest.mark.parametrize("rows", [20_001, 700_000])
def test_large_movement_in_any_memory(form: str, rows: int, name: str) -> None:
    size, rank = hvd.size(), hvd.rank()
    inputs = [np.arange(rows * size, dtype=np.int32) * (one + 1) for one in range(size)]
    own = in_memory(form, inputs[rank])
    for repetition in range(3):
        out = in_memory(form, np.zeros(rows * size * size, np.int32))
        uneven = own[: rows * size - rank * 1000]
        parts = [one[: rows * size - index * 1000] for index, one in enumerate(inputs)]
        expected = np.concatenate(parts)
        result = hvd.allgather(uneven, name=f"{name}.gather", out=out[: len(expected)])
        assert_same_bits(result, expected)
        result = hvd.alltoall(own, name=f"{name}.alltoall", out=out[: rows * size])
        moved = [one[rows * rank :][:rows] for one in inputs]
        assert_same_bits(result, np.concatenate(moved))
        scattered = hvd.reducescatter(own, op=hvd.Sum, name=f"{name}.scatter", out=out[:rows])
        assert_same_bits(scattered, np.sum(moved, axis=0, dtype=np.int32))
        root = repetition % size
        sent = in_memory(form, inputs[rank])
        assert_same_bits(hvd.broadcast_(sent, root, name=f"{name}.broadcast"), inputs[root])
        assert_same_bits(own, inputs[rank])
