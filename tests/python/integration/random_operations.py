"""Random collectives and their exact results, computed by numpy.

Every rank draws the same operations from the same generator, with the inputs of all ranks, so that
each can compute all results.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import horoscale.numpy as hvd

INTEGERS = ("uint8", "int8", "uint16", "int16", "int32", "int64")
FLOATS = ("float16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
ALL_TYPES = (*INTEGERS, *FLOATS, *COMPLEX, "bool")
TYPES_OF_OP = {
    hvd.Sum: ALL_TYPES,
    hvd.Product: ALL_TYPES,
    hvd.Average: (*INTEGERS, *FLOATS, *COMPLEX),
    hvd.Min: (*INTEGERS, *FLOATS, "bool"),
    hvd.Max: (*INTEGERS, *FLOATS, "bool"),
    hvd.BitwiseAnd: (*INTEGERS, "bool"),
    hvd.BitwiseOr: (*INTEGERS, "bool"),
    hvd.BitwiseXor: (*INTEGERS, "bool"),
}
FOLD: dict[int, np.ufunc] = {
    hvd.Sum: np.add,
    hvd.Average: np.add,
    hvd.Product: np.multiply,
    hvd.Min: np.minimum,
    hvd.Max: np.maximum,
    hvd.BitwiseAnd: np.bitwise_and,
    hvd.BitwiseOr: np.bitwise_or,
    hvd.BitwiseXor: np.bitwise_xor,
}


@dataclass(frozen=True)
class Members:
    """The participants: a process set, whose members are numbered from 0 here."""

    process_set: hvd.ProcessSet
    ranks: Sequence[int]  # global ranks, ascending

    @classmethod
    def all_of(cls, size: int) -> Members:
        return cls(hvd.global_process_set, range(size))


@dataclass(frozen=True)
class Operation:
    """One collective: how a member starts it, and its expected result there."""

    description: str
    start: Callable[[int, str | None], Any]  # (member, name) -> handle
    expected: Callable[[int], list[np.ndarray]]

    def check(self, rank: int, result: Any) -> None:
        """Raises AssertionError unless `result` is this rank's expected result."""
        arrays = list(result) if isinstance(result, (list, tuple)) else [result]
        if result is None:  # not the root of a reduce or a gather
            arrays = []
        expected = self.expected(rank)
        assert len(arrays) == len(expected), f"{self.description}: {len(arrays)} results"
        for got, want in zip(arrays, expected, strict=True):
            assert got.dtype == want.dtype, f"{self.description}: {got.dtype}, not {want.dtype}"
            assert got.shape == want.shape, f"{self.description}: {got.shape}, not {want.shape}"
            if not np.array_equal(got, want, equal_nan=got.dtype.kind in "fc"):
                at = np.flatnonzero(got.ravel() != want.ravel())
                raise AssertionError(
                    f"{self.description}: {len(at)} of {got.size} elements differ, first "
                    f"{at[0]}: {got.ravel()[at[0]]!r}, not {want.ravel()[at[0]]!r}"
                )


def draw(rng: np.random.Generator, size: int) -> Operation:
    """Draws an operation over all of `size` ranks."""
    return draw_of(rng, Members.all_of(size))


def draw_of(rng: np.random.Generator, members: Members) -> Operation:
    """Draws an operation over the members of a process set."""
    kinds: list[Callable[[np.random.Generator, Members], Operation]]
    kinds = [_allreduce, _allreduce, _allgather, _broadcast, _alltoall, _reducescatter]
    kinds += [_reduce, _gather, _scatter]
    return kinds[rng.integers(len(kinds))](rng, members)


def reduced(
    inputs: Sequence[np.ndarray], op: int, prescale: float = 1.0, postscale: float = 1.0
) -> np.ndarray:
    """The left fold over the ranks in the accumulator type, rounded once."""
    dtype = inputs[0].dtype
    with np.errstate(all="ignore"):
        terms = [_scaled(x.astype(_accumulator(dtype)), prescale) for x in inputs]
        total = np.asarray(functools.reduce(FOLD[op], terms))
        if op == hvd.Average:
            total = _divided(total, len(inputs))
        return np.asarray(_scaled(total, postscale).astype(dtype))


def _accumulator(dtype: np.dtype) -> np.dtype:
    return np.dtype(np.float32) if dtype == np.float16 else dtype


def _scaled(array: np.ndarray, factor: float) -> np.ndarray:
    return array if factor == 1.0 else array * array.dtype.type(factor)


def _divided(total: np.ndarray, divisor: int) -> np.ndarray:
    if total.dtype.kind in "iu":  # towards zero
        return (total - np.fmod(total, total.dtype.type(divisor))) // total.dtype.type(divisor)
    number = total.real.dtype.type(divisor)
    if total.dtype.kind == "c":  # numpy divides complex numbers by each other, which is less exact
        parts = np.empty_like(total)
        parts.real, parts.imag = total.real / number, total.imag / number
        return parts
    return np.asarray(total / number)


def random_values(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    kind = np.dtype(dtype).kind
    values: Any  # a scalar if the shape is ()
    if kind in "iu":
        info = np.iinfo(dtype)
        values = rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    elif kind == "b":
        values = rng.integers(0, 2, shape)
    elif kind == "c":  # small integers: exact in any order of complex products
        values = rng.integers(-4, 5, shape) + 1j * rng.integers(-4, 5, shape)
    else:
        values = rng.standard_normal(shape)
    return np.asarray(values, dtype=dtype)


def _shape(rng: np.random.Generator, min_dims: int = 0) -> tuple[int, ...]:
    """Mostly small, sometimes empty or 0-d, occasionally larger than a chunk of the transport."""
    chance = rng.random()
    if chance < 0.05:
        return () if min_dims == 0 else (0,)
    if chance < 0.1:
        return (0, 3)
    rows = int(2 ** rng.uniform(0, 19 if chance > 0.97 else 13))
    return (rows,) if chance < 0.6 else (rows, int(rng.integers(1, 6)))


def _of_ranks(
    rng: np.random.Generator, dtype: str, shapes: Sequence[tuple[int, ...]]
) -> list[np.ndarray]:
    return [random_values(rng, dtype, shape) for shape in shapes]


def _allreduce(rng: np.random.Generator, members: Members) -> Operation:
    size, where = len(members.ranks), members.process_set
    op = int(rng.choice(list(TYPES_OF_OP)))
    count = int(rng.choice([1, 1, 1, 2, 5]))
    dtypes = [str(rng.choice(TYPES_OF_OP[op])) for _ in range(count)]
    scales = (1.0, 1.0)
    if all(dtype in FLOATS for dtype in dtypes) and op in (hvd.Sum, hvd.Average):
        scales = (float(rng.choice([1.0, 0.5, 1 / 3])), float(rng.choice([1.0, 0.1])))
    in_place = bool(rng.integers(2))
    tensors = [_of_ranks(rng, dtype, [_shape(rng)] * size) for dtype in dtypes]
    factors = {"op": op, "prescale_factor": scales[0], "postscale_factor": scales[1]}

    def start(rank: int, name: str | None) -> Any:
        own = [tensor[rank].copy() for tensor in tensors]
        if count == 1:
            call = hvd.allreduce_async_ if in_place else hvd.allreduce_async
            return call(own[0], name=name, process_set=where, **factors)
        group = hvd.grouped_allreduce_async_ if in_place else hvd.grouped_allreduce_async
        return group(own, name=name, process_set=where, **factors)

    return Operation(
        f"allreduce of {dtypes} {[t[0].shape for t in tensors]}, {factors}, in place: {in_place}",
        start,
        lambda rank: [reduced(tensor, op, *scales) for tensor in tensors],
    )


def _allgather(rng: np.random.Generator, members: Members) -> Operation:
    size, where = len(members.ranks), members.process_set
    dtype = str(rng.choice(ALL_TYPES))
    trailing = _shape(rng, min_dims=1)[1:]
    count = int(rng.choice([1, 1, 3]))
    tensors = [
        _of_ranks(rng, dtype, [(int(rng.integers(0, 300)), *trailing) for _ in range(size)])
        for _ in range(count)
    ]

    def start(rank: int, name: str | None) -> Any:
        own = [tensor[rank] for tensor in tensors]
        if count == 1:
            return hvd.allgather_async(own[0], name=name, process_set=where)
        return hvd.grouped_allgather_async(own, name=name, process_set=where)

    return Operation(
        f"allgather of {count} {dtype} with rows {[len(x) for x in tensors[0]]} of {trailing}",
        start,
        lambda rank: [np.concatenate(tensor) for tensor in tensors],
    )


def _broadcast(rng: np.random.Generator, members: Members) -> Operation:
    size, where = len(members.ranks), members.process_set
    dtype, root = str(rng.choice(ALL_TYPES)), int(rng.integers(size))
    in_place = bool(rng.integers(2))
    inputs = _of_ranks(rng, dtype, [_shape(rng)] * size)

    def start(rank: int, name: str | None) -> Any:
        call = hvd.broadcast_async_ if in_place else hvd.broadcast_async
        return call(
            inputs[rank].copy(), root_rank=members.ranks[root], name=name, process_set=where
        )

    return Operation(
        f"broadcast of {dtype} {inputs[0].shape} from {root}, in place: {in_place}",
        start,
        lambda rank: [inputs[root]],
    )


def _alltoall(rng: np.random.Generator, members: Members) -> Operation:
    size, where = len(members.ranks), members.process_set
    dtype = str(rng.choice(ALL_TYPES))
    trailing = _shape(rng, min_dims=1)[1:]
    splits = rng.integers(0, 100, (size, size)).astype(np.int32)  # [from][to]
    inputs = _of_ranks(rng, dtype, [(int(row.sum()), *trailing) for row in splits])

    def start(rank: int, name: str | None) -> Any:
        return hvd.alltoall_async(inputs[rank], splits=splits[rank], name=name, process_set=where)

    def expected(rank: int) -> list[np.ndarray]:
        first = splits.cumsum(axis=1) - splits
        parts = [inputs[r][first[r, rank] : first[r, rank] + splits[r, rank]] for r in range(size)]
        return [np.concatenate(parts), splits[:, rank]]

    return Operation(f"alltoall of {dtype}, {splits.tolist()} rows of {trailing}", start, expected)


def _reducescatter(rng: np.random.Generator, members: Members) -> Operation:
    size, where = len(members.ranks), members.process_set
    op = int(rng.choice(list(TYPES_OF_OP)))
    dtype = str(rng.choice(TYPES_OF_OP[op]))
    count = int(rng.choice([1, 1, 3]))
    tensors = [_of_ranks(rng, dtype, [_shape(rng, min_dims=1)] * size) for _ in range(count)]
    splits = None
    if count == 1 and rng.integers(2):
        ends = np.sort(rng.integers(0, len(tensors[0][0]) + 1, size - 1))
        splits = np.diff(ends, prepend=0, append=len(tensors[0][0]))

    def start(rank: int, name: str | None) -> Any:
        own = [tensor[rank] for tensor in tensors]
        if count == 1:
            return hvd.reducescatter_async(
                own[0], op=op, name=name, process_set=where, splits=splits
            )
        return hvd.grouped_reducescatter_async(own, op=op, name=name, process_set=where)

    def own_rows(array: np.ndarray, rank: int) -> np.ndarray:
        if splits is None:
            return np.array_split(array, size)[rank]
        first = int(splits[:rank].sum())
        return array[first : first + int(splits[rank])]

    return Operation(
        f"reducescatter of {count} {dtype} {[t[0].shape for t in tensors]}, op {op}, {splits=}",
        start,
        lambda rank: [own_rows(reduced(tensor, op), rank) for tensor in tensors],
    )


def _reduce(rng: np.random.Generator, members: Members) -> Operation:
    size, where = len(members.ranks), members.process_set
    op, root = int(rng.choice(list(TYPES_OF_OP))), int(rng.integers(size))
    dtype = str(rng.choice(TYPES_OF_OP[op]))
    in_place = bool(rng.integers(2))
    inputs = _of_ranks(rng, dtype, [_shape(rng)] * size)

    def start(rank: int, name: str | None) -> Any:
        call = hvd.reduce_async_ if in_place else hvd.reduce_async
        return call(inputs[rank].copy(), members.ranks[root], op=op, name=name, process_set=where)

    return Operation(
        f"reduce of {dtype} {inputs[0].shape} to {root}, op {op}, in place: {in_place}",
        start,
        lambda rank: [reduced(inputs, op)] if rank == root else [],
    )


def _gather(rng: np.random.Generator, members: Members) -> Operation:
    size, where = len(members.ranks), members.process_set
    dtype, root = str(rng.choice(ALL_TYPES)), int(rng.integers(size))
    trailing = _shape(rng, min_dims=1)[1:]
    inputs = _of_ranks(rng, dtype, [(int(rng.integers(0, 300)), *trailing) for _ in range(size)])
    return Operation(
        f"gather of {dtype} to {root} with rows {[len(x) for x in inputs]} of {trailing}",
        lambda rank, name: hvd.gather_async(
            inputs[rank], members.ranks[root], name=name, process_set=where
        ),
        lambda rank: [np.concatenate(inputs)] if rank == root else [],
    )


def _scatter(rng: np.random.Generator, members: Members) -> Operation:
    size, where = len(members.ranks), members.process_set
    dtype, root = str(rng.choice(ALL_TYPES)), int(rng.integers(size))
    trailing = _shape(rng, min_dims=1)[1:]
    splits = rng.integers(0, 300, size)
    whole = random_values(rng, dtype, (int(splits.sum()), *trailing))

    def start(rank: int, name: str | None) -> Any:
        if rank == root:
            return hvd.scatter_async(
                whole, members.ranks[root], splits=splits, name=name, process_set=where
            )
        return hvd.scatter_async(whole[:rank], members.ranks[root], name=name, process_set=where)

    ends = splits.cumsum()
    return Operation(
        f"scatter of {dtype} from {root} with rows {splits.tolist()} of {trailing}",
        start,
        lambda rank: [whole[ends[rank] - splits[rank] : ends[rank]]],
    )


def draw_large_movement(rng: np.random.Generator, size: int) -> Operation:
    """Draws an operation whose ranks read each other's memory, private or shared."""
    operation = str(rng.choice(["allgather", "alltoall", "broadcast", "reducescatter"]))
    rows = int(2 ** rng.uniform(14, 16)) * size
    shared = rng.integers(2, size=size)
    into_out = bool(rng.integers(2))
    inputs = _of_ranks(rng, "int32", [(rows,)] * size)
    root = int(rng.integers(size))

    def start(rank: int, name: str | None) -> Any:
        own = inputs[rank]
        if shared[rank]:
            own = hvd.empty_shared(rows, dtype=np.int32)
            own[:] = inputs[rank]
        if operation == "broadcast":
            return hvd.broadcast_async(own, root, name=name)
        out = None
        if into_out:
            out = np.empty_like(expected(rank)[0])
        if operation == "reducescatter":
            return hvd.reducescatter_async(own, op=hvd.Sum, name=name, out=out)
        call = hvd.allgather_async if operation == "allgather" else hvd.alltoall_async
        return call(own, name=name, out=out)

    def expected(rank: int) -> list[np.ndarray]:
        if operation == "allgather":
            return [np.concatenate(inputs)]
        if operation == "broadcast":
            return [inputs[root]]
        if operation == "alltoall":
            return [np.concatenate([np.array_split(one, size)[rank] for one in inputs])]
        return [np.array_split(reduced(inputs, hvd.Sum), size)[rank]]

    return Operation(f"{operation} of {rows} int32, shared {shared.tolist()}", start, expected)
