"""Kinds of arrays that snapshots hold as bytes: numpy's here, others where their framework is."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

# The element types by their names in safetensors files.
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
    """Element type, by its name in safetensors files, and shape of an array."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """How many bytes the elements have."""
        return ITEM_BYTES[self.dtype] * prod(self.shape)


class ArrayKind(Protocol):
    """How arrays of one framework become bytes, and bytes such arrays."""

    name: str

    def matches(self, value: Any) -> bool:
        """Tell whether `value` is an array of this kind whose element type has a name."""

    def spec(self, array: Any) -> Spec:
        """Return what is needed beside the bytes."""

    def read(self, array: Any, into: Bytes) -> None:
        """Copy the elements, in C order."""

    def make(self, spec: Spec, data: Bytes) -> Any:
        """Return a new array of these bytes."""


class NumpyArrays:
    """Arrays of numpy; its scalars are none."""

    name = "numpy"

    def matches(self, value: Any) -> bool:
        """Tell whether `value` is a plain array."""
        return type(value) is np.ndarray and value.dtype in _FROM_NUMPY

    def spec(self, array: Any) -> Spec:
        """Return element type and shape."""
        return Spec(_FROM_NUMPY[array.dtype], array.shape)

    def read(self, array: Any, into: Bytes) -> None:
        """Copy the elements, in C order."""
        np.copyto(into.view(array.dtype).reshape(array.shape), array)

    def make(self, spec: Spec, data: Bytes) -> Any:
        """Return a new array of these bytes."""
        return data.copy().view(_NUMPY[spec.dtype]).reshape(spec.shape)


_kinds: dict[str, ArrayKind] = {"numpy": NumpyArrays()}


def register_kind(kind: ArrayKind) -> None:
    """Have snapshots hold arrays of a further kind as bytes."""
    _kinds[kind.name] = kind


def kind_of(value: Any) -> ArrayKind | None:
    """Return the kind of an array; None of what is no array, or one that has to be pickled."""
    return next((kind for kind in _kinds.values() if kind.matches(value)), None)


def kind_named(name: str) -> ArrayKind:
    """Return a kind by name; ValueError if its framework's module is not imported."""
    try:
        return _kinds[name]
    except KeyError:
        raise ValueError(
            f"the state has arrays of {name}: import horoscale.{name}.elastic to load it"
        ) from None
