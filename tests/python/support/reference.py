"""The expected results of operations, computed by numpy from the inputs of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

INTEGERS = ("uint8", "int8", "uint16", "int16", "int32", "int64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
DTYPES = (*INTEGERS, *FLOATS, "bool", *COMPLEX)

AVERAGE, SUM, MIN, MAX, PRODUCT = "Average", "Sum", "Min", "Max", "Product"
BITWISE = ("BitwiseAnd", "BitwiseOr", "BitwiseXor")
OPS = (AVERAGE, SUM, MIN, MAX, PRODUCT, *BITWISE)

# Zero, one element, an odd number, some, and enough for several chunks of the data plane.
SIZES = (0, 1, 3, 1000, 300_007)


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The dtype with a name; bfloat16 is that of ml_dtypes."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def values(dtype: str, shape: int | tuple[int, ...], rank: int, seed: int = 0) -> np.ndarray:
    """The input of a rank, which every rank can compute. Integers use all bits."""
    random = np.random.default_rng((seed, rank, DTYPES.index(dtype)))
    if dtype == "bool":
        return random.random(shape) < 0.5
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        return random.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    if dtype in COMPLEX:
        return (random.uniform(-2, 2, shape) + 1j * random.uniform(-2, 2, shape)).astype(dtype)
    return random.uniform(-2, 2, shape).astype(numpy_dtype(dtype))


def defined(dtype: str, op: str) -> bool:
    """Whether a reduction is defined for a type."""
    if op in BITWISE:
        return dtype in (*INTEGERS, "bool")
    if dtype in COMPLEX:
        return op not in (MIN, MAX)
    return dtype != "bool" or op != AVERAGE


def reduced(inputs: list[np.ndarray], op: str, participants: int | None = None) -> np.ndarray:
    """The canonical value: a left fold over the ranks in the accumulator's type, rounded once.

    An average is over `participants`, if these are more than the inputs.
    """
    participants = len(inputs) if participants is None else participants
    dtype = inputs[0].dtype
    accumulator = np.dtype(np.float32) if dtype.name in ("float16", "bfloat16") else dtype
    wide = [one.astype(accumulator) for one in inputs]
    with np.errstate(all="ignore"):
        if op in BITWISE:
            functions = (np.bitwise_and, np.bitwise_or, np.bitwise_xor)
            return reduce(functions[BITWISE.index(op)], wide)
        if dtype.kind == "b":
            return reduce(np.logical_or if op in (SUM, MAX) else np.logical_and, wide)
        fold = {
            SUM: np.add,
            AVERAGE: np.add,
            PRODUCT: np.multiply,
            MIN: np.minimum,
            MAX: np.maximum,
        }
        result = reduce(fold[op], wide)
        if op == AVERAGE and dtype.kind in "iu":
            divisor = dtype.type(participants)
            result = (result - np.fmod(result, divisor)) // divisor  # towards zero
        elif op == AVERAGE:
            result = (result / accumulator.type(participants)).astype(accumulator)
        return result.astype(dtype)


def reduced_by_hosts(
    inputs: list[np.ndarray], hosts: Sequence[str], op: str, wire_dtype: str | None = None
) -> np.ndarray:
    """The canonical value of ranks on these hosts: each host's is rounded, then they are folded.

    With `wire_dtype` the hosts' values are rounded to that type (float64 through float32), and so
    is the result.
    """
    of_hosts = [
        [one for one, place in zip(inputs, hosts, strict=True) if place == host]
        for host in dict.fromkeys(hosts)
    ]
    if len(of_hosts) == 1:
        return reduced(inputs, op)
    in_host = SUM if op == AVERAGE else op
    values_of_hosts = [reduced(some, in_host) for some in of_hosts]
    if wire_dtype is not None:
        to = numpy_dtype(wire_dtype)
        values_of_hosts = [value.astype(np.float32).astype(to) for value in values_of_hosts]
    return reduced(values_of_hosts, op, len(inputs)).astype(inputs[0].dtype)


def check_reduced(result: np.ndarray, inputs: list[np.ndarray], op: str) -> None:
    """Compare bit by bit, except where a division or a complex product may round differently."""
    expected = reduced(inputs, op)
    assert result.dtype == expected.dtype
    assert result.shape == expected.shape
    exact = expected.dtype.kind in "iub" or op in (SUM, MIN, MAX)
    if expected.dtype.kind == "c":
        exact = exact and op != PRODUCT
    if exact:
        assert result.tobytes() == expected.tobytes()
        return
    tolerance = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6, "complex64": 1e-5}
    rtol = tolerance.get(expected.dtype.name, 1e-13)
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    np.testing.assert_allclose(result.astype(wide), expected.astype(wide), rtol=rtol, atol=rtol)
