"""Kinds of arrays that snapshots store as bytes: NumPy's here, other frameworks' elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

# Element types by their names in safetensors files.
ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2, "U32": 4, "I32": 4,
    "F32": 4, "U64": 8, "I64": 8, "F64": 8, "C64": 8, "C128": 16,
}  # fmt: skip
_NUMPY = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "F16": "float16",
    "U32": "uint32", "I32": "int32", "F32": "float32", "U64": "uint64", "I64": "int64",
    "F64": "float64", "C64": "complex64", "C128": "complex128",
}  # fmt: skip
_FROM_NUMPY = {np.dtype(name): ours for ours, name in _NUMPY.items()}


@dataclass(frozen=True)
class Spec:
    """The shape and element type of an array, with the type's name in safetensors files."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return ITEM_BYTES[self.dtype] * prod(self.shape)


class ArrayKind(Protocol):
    """Converts the arrays of one framework to bytes and back."""

    name: str

    def matches(self, value: Any) -> bool:
        """Return whether `value` is an array of this kind with a supported element type."""

    def spec(self, array: Any) -> Spec:
        """Return the element type and shape, which the bytes do not contain."""

    def read(self, array: Any, into: Bytes) -> None:
        """Copy the elements, in C order."""

    def make(self, spec: Spec, data: Bytes) -> Any:
        """Return a new array with these bytes."""


class NumpyArrays:
    """NumPy arrays, without NumPy's scalars."""

    name = "numpy"

    def matches(self, value: Any) -> bool:
        """Return whether `value` is a plain array."""
        return type(value) is np.ndarray and value.dtype in _FROM_NUMPY

    def spec(self, array: Any) -> Spec:
        """Return element type and shape."""
        return Spec(_FROM_NUMPY[array.dtype], array.shape)

    def read(self, array: Any, into: Bytes) -> None:
        """Copy the elements, in C order."""
        np.copyto(into.view(array.dtype).reshape(array.shape), array)

    def make(self, spec: Spec, data: Bytes) -> Any:
        """Return a new array with these bytes."""
        return data.copy().view(_NUMPY[spec.dtype]).reshape(spec.shape)


_kinds: dict[str, ArrayKind] = {"numpy": NumpyArrays()}


def register_kind(kind: ArrayKind) -> None:
    """Register another kind of arrays for snapshots to store as bytes."""
    _kinds[kind.name] = kind


def kind_of(value: Any) -> ArrayKind | None:
    """Return the kind of an array, or None for other values and for arrays that must be pickled."""
    return next((kind for kind in _kinds.values() if kind.matches(value)), None)


def kind_named(name: str) -> ArrayKind:
    """Return a kind by name. Raises ValueError if its framework's module is not imported."""
    try:
        return _kinds[name]
    except KeyError:
        raise ValueError(
            f"the state contains arrays of {name}: import horoscale.{name}.elastic to load it"
        ) from None
