"""reduce, gather and scatter on arrays against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from support.reference import DTYPES, OPS, SIZES, check_reduced, defined, values

import horoscale.numpy as hvd

REDUCTIONS = [
    pytest.param(
        dtype,
        op,
        n,
        id=f"reduce-{op}-{dtype}-n{n}",
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


def assert_same_bits(result: np.ndarray | None, expected: np.ndarray) -> None:
    assert result is not None
    assert result.dtype == expected.dtype
    assert result.shape == expected.shape
    assert result.tobytes() == expected.tobytes()


@pytest.mark.parametrize(("dtype", "op", "n"), REDUCTIONS)
def test_reduce(dtype: str, op: str, n: int, name: str) -> None:
    inputs = all_values(dtype, n)
    own = inputs[hvd.rank()]
    before = own.copy()
    root = n % hvd.size()
    result = hvd.reduce(own, root, op=getattr(hvd, op), name=name)
    assert own.tobytes() == before.tobytes()
    if hvd.rank() != root:
        assert result is None
        return
    assert result is not None
    check_reduced(result, inputs, op)


@pytest.mark.conformance
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64"])
def test_reduce_has_the_bits_of_allreduce(dtype: str, n: int, name: str) -> None:
    own = all_values(dtype, n)[hvd.rank()]
    factors = {"prescale_factor": 0.3, "postscale_factor": 7.0}
    everywhere = hvd.allreduce(own, name=f"{name}.all", **factors)
    for root in range(hvd.size()):
        result = hvd.reduce(own, root, name=name, **factors)
        if hvd.rank() == root:
            assert_same_bits(result, everywhere)


@pytest.mark.conformance
@pytest.mark.parametrize("n", SIZES)
def test_reduce_in_place(n: int, name: str) -> None:
    inputs = all_values("int64", n)
    for root in range(hvd.size()):
        own = inputs[hvd.rank()].copy()
        result = hvd.reduce_(own, root, op=hvd.Sum, name=name)
        if hvd.rank() == root:
            assert result is own
            check_reduced(own, inputs, "Sum")
        else:
            assert result is None
            assert_same_bits(own, inputs[hvd.rank()])


@pytest.mark.parametrize("place", ["private", "shared", "shared at the root", "from shared"])
def test_a_large_reduce_has_the_bits_of_allreduce(place: str, name: str) -> None:
    """Whichever rank folds it, and wherever it is; only the root's memory is written."""
    own = all_values("float32", 300_001)[hvd.rank()]
    everywhere = hvd.allreduce(own, name=f"{name}.all")
    for root in {0, hvd.size() - 1}:
        is_here = hvd.rank() == root if place == "shared at the root" else place != "private"
        tensor = hvd.empty_shared(own.shape) if is_here else own.copy()
        tensor[:] = own
        if place == "from shared":
            result = hvd.reduce(tensor, root, name=name)
        else:
            result = hvd.reduce_(tensor, root, name=name)
        if hvd.rank() == root:
            assert_same_bits(result, everywhere)
        else:
            assert result is None
            assert_same_bits(tensor, own)


def test_reduce_in_place_of_a_view(name: str) -> None:
    whole = np.full((4, 6), hvd.rank() + 1)
    hvd.synchronize(hvd.reduce_async_(whole[:, ::2], 0, op=hvd.Max, name=name))
    assert (whole[:, ::2] == (hvd.size() if hvd.rank() == 0 else hvd.rank() + 1)).all()
    assert (whole[:, 1::2] == hvd.rank() + 1).all()


@pytest.mark.conformance
def test_many_reductions_to_several_roots_at_once(name: str) -> None:
    inputs = [all_values("float32", 50 * i, seed=i) for i in range(20)]
    handles = [
        hvd.reduce_async(one[hvd.rank()], i % hvd.size(), op=hvd.Sum, name=f"{name}.{i}")
        for i, one in enumerate(inputs)
    ]
    for i, handle in enumerate(handles):
        result = hvd.synchronize(handle)
        assert (result is None) == (i % hvd.size() != hvd.rank())
        if result is not None:
            check_reduced(result, inputs[i], "Sum")


@pytest.mark.conformance
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_gather(dtype: str, n: int, name: str) -> None:
    inputs = all_values(dtype, n)
    for root in range(hvd.size()):
        result = hvd.gather(inputs[hvd.rank()], root, name=name)
        if hvd.rank() == root:
            assert_same_bits(result, np.concatenate(inputs))
        else:
            assert result is None


@pytest.mark.conformance
@pytest.mark.parametrize("row_shape", [(), (5, 3), (0,)], ids=str)
def test_gather_of_unequal_rows(row_shape: tuple[int, ...], name: str) -> None:
    for repetition in range(3):
        rows = [(rank * 7 + repetition) % 5 * 100 for rank in range(hvd.size())]
        inputs = [values("int32", (rows[rank], *row_shape), rank) for rank in range(hvd.size())]
        handles = [
            hvd.gather_async(inputs[hvd.rank()], root, name=f"{name}.{root}")
            for root in range(hvd.size())
        ]
        for root, handle in enumerate(handles):
            result = hvd.synchronize(handle)
            if hvd.rank() == root:
                assert_same_bits(result, np.concatenate(inputs))
            else:
                assert result is None


@pytest.mark.conformance
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_scatter(dtype: str, n: int, name: str) -> None:
    inputs = all_values(dtype, n)
    for root in range(hvd.size()):
        own = inputs[root] if hvd.rank() == root else inputs[root][:0]
        result = hvd.scatter(own, root, name=name)
        assert_same_bits(result, np.array_split(inputs[root], hvd.size())[hvd.rank()])
        result[:] = 0  # the array owns its memory


@pytest.mark.conformance
@pytest.mark.parametrize("row_shape", [(), (5, 3), (0,)], ids=str)
def test_scatter_with_splits(row_shape: tuple[int, ...], name: str) -> None:
    """The root's splits are used; rows beyond them are not sent."""
    for repetition in range(3):
        splits = [(rank * 7 + repetition) % 5 * 100 for rank in range(hvd.size())]
        whole = values("int32", (sum(splits) + repetition, *row_shape), 0)
        first = sum(splits[: hvd.rank()])
        for root in range(hvd.size()):
            is_root = hvd.rank() == root
            result = hvd.synchronize(
                hvd.scatter_async(
                    whole if is_root else whole[: hvd.rank()],
                    root,
                    splits=splits if is_root else None,
                    name=name,
                )
            )
            assert_same_bits(result, whole[first : first + splits[hvd.rank()]])


def test_in_a_process_set(process_set: hvd.ProcessSet, name: str) -> None:
    if not process_set.included():
        return
    ranks = process_set.ranks
    assert ranks is not None
    root = ranks[-1]
    own = np.full(2, hvd.rank())
    total = hvd.reduce(own, root, op=hvd.Sum, name=name, process_set=process_set)
    gathered = hvd.gather(own, root, name=name, process_set=process_set)
    if hvd.rank() == root:
        assert total is not None
        assert (total == sum(ranks)).all()
        assert_same_bits(gathered, np.repeat(ranks, 2))
    rows = np.arange(len(ranks)) * (hvd.rank() == root)
    result = hvd.scatter(rows, root, name=name, process_set=process_set)
    np.testing.assert_array_equal(result, [ranks.index(hvd.rank())])


@pytest.mark.usefixtures("need_ranks")
@pytest.mark.parametrize("what", ["root", "op", "shape", "dtype"])
def test_mismatch(what: str, name: str) -> None:
    differs = hvd.rank() == hvd.size() - 1
    root = int(differs and what == "root")
    own = np.ones((3, 4), np.int32)
    if differs and what == "shape":
        own = own[:, :2]
    if differs and what == "dtype":
        own = own.astype(np.int64)
    op = hvd.BitwiseOr if differs and what == "op" else hvd.BitwiseXor
    shown = "operator|Bitwise" if what == "op" else {"root": "root 1"}.get(what, "int32")
    with pytest.raises(hvd.MismatchError, match=shown):
        hvd.reduce(own, root, op=op, name=name)
    if what == "op":
        return
    with pytest.raises(hvd.MismatchError, match=shown):
        hvd.gather(own, root, name=name)
    with pytest.raises(hvd.MismatchError, match=shown):
        hvd.scatter(own, root, name=name)
    assert hvd.scatter(np.ones(hvd.size()), 0, name=name).shape == (1,)


def test_wrong_arguments(name: str) -> None:
    for root in (-1, 99):
        for operation in (hvd.reduce, hvd.gather, hvd.scatter):
            with pytest.raises(ValueError, match=f"root_rank={root}"):
                operation(np.ones(3), root, name=name)
    for operation in (hvd.gather, hvd.scatter):
        with pytest.raises(ValueError, match="dimension"):
            operation(np.float32(1), 0, name=name)
    for op in (hvd.BitwiseAnd, hvd.BitwiseOr, hvd.BitwiseXor):
        with pytest.raises(NotImplementedError, match="of float64 is not defined"):
            hvd.reduce(np.ones(3), 0, op=op, name=name)
    root = hvd.rank()  # each rank is the root, and fails before it sends
    for splits in ([1] * (hvd.size() + 1), [-1] * hvd.size(), [4] * hvd.size()):
        with pytest.raises(ValueError, match="splits"):
            hvd.scatter(np.ones(3), root, splits=splits, name=name)


@pytest.mark.usefixtures("need_ranks")
def test_a_joined_rank_is_absent_from_a_reduction(name: str) -> None:
    """Its sum contains the others' values; operations that need the joined rank fail."""
    last = hvd.size() - 1
    if hvd.rank() == last:
        hvd.join()
        return
    total = hvd.reduce(np.full(5, 1 + hvd.rank()), 0, op=hvd.Sum, name=name)
    if hvd.rank() == 0:
        # The last rank contributes nothing here, whether it joins before or after this.
        np.testing.assert_array_equal(total, np.full(5, last * (last + 1) // 2))
    for operation in (hvd.gather, hvd.scatter):
        with pytest.raises(hvd.HorovodInternalError, match=f"rank {last}, which called join"):
            operation(np.ones(3), 0, name=f"{name}.{operation.__name__}")
    with pytest.raises(hvd.HorovodInternalError, match=f"rank {last}, which called join"):
        hvd.reduce(np.ones(3), last, name=f"{name}.root")
    hvd.join()
