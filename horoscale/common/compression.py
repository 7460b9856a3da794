"""Lossy compression between hosts, shared by all frameworks.

The library encodes the data between hosts. It adds the encoding error to the next values of the
same name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from horoscale._core import Encoding

C = TypeVar("C")  # a framework's base class of compressors

# The number of elements that are encoded together; see hs_encoding in the C header.
_GROUP_ELEMENTS = 4096

# The range of relative errors that adaptive() accepts.
_LEAST_ERROR = 0.0001
_MOST_ERROR = 6

# Smaller parameters gain nothing and lose most: biases, and the gains of norms.
_SMALLEST = 1024

# Names of embeddings, most of whose rows have no gradient in a step.
_EMBEDDINGS = ("*embed*", "*wte.*", "*wpe.*", "*lookup*")


@dataclass(frozen=True)
class Encoded:
    """A compressor that the library implements. It receives tensors unchanged."""

    encoding: Encoding
    label: str  # the expression that users write

    def compress(self, tensor: Any) -> tuple[Any, None]:
        """Return the tensor itself."""
        return tensor, None

    def decompress(self, tensor: Any, ctx: Any) -> Any:
        """Return the tensor itself."""
        return tensor

    def __repr__(self) -> str:
        """Return the expression that users write."""
        return f"Compression.{self.label}"


INT8 = Encoded(Encoding.INT8, "int8")
INT4 = Encoded(Encoding.INT4, "int4")
ONEBIT = Encoded(Encoding.ONEBIT, "onebit")


def topk(ratio: float) -> Encoded:
    """Return a compressor that sends this share of the elements, those of largest magnitude.

    They are selected within each block of 4,096 elements, at least one per block. Raises ValueError
    unless 0 < ratio <= 1.
    """
    if not 0 < ratio <= 1:
        raise ValueError(f"topk({ratio!r}): a share of the elements is more than 0 and at most 1")
    kept = min(math.ceil(ratio * _GROUP_ELEMENTS), _GROUP_ELEMENTS)
    return Encoded(Encoding.top_k(kept), f"topk({ratio})")


def adaptive(error: float = 0.1) -> Encoded:
    """Return a compressor that compresses only as much as is needed to hide communication.

    For each tensor and step, the set's coordinator selects no encoding, bf16, int8, int4, onebit or
    topk(0.01), depending on the network. Only encodings with a relative error of at most `error`
    qualify. The relative error is the norm of a tensor's residuals divided by the norm of its
    values. Raises ValueError unless 0.0001 <= error <= 6.
    """
    if not _LEAST_ERROR <= error <= _MOST_ERROR:
        raise ValueError(
            f"adaptive({error!r}): an error is at least {_LEAST_ERROR} and at most {_MOST_ERROR}"
        )
    return Encoded(Encoding.adaptive(round(error * 10_000)), f"adaptive({error})")


def divided(
    compression: type[C] | Encoded, none: type[C], fp16: type[C], bf16: type[C]
) -> tuple[Encoding, type[C]]:
    """Return the library's encoding of the tensors, and the compressor to run in Python.

    `none`, `fp16` and `bf16` are the framework's classes for which the library does all the work.
    """
    if isinstance(compression, Encoded):
        return compression.encoding, none
    if compression is fp16:
        return Encoding.FLOAT16, none
    if compression is bf16:
        return Encoding.BFLOAT16, none
    return Encoding.NONE, compression


@dataclass(frozen=True)
class Selection:
    """Selects the encoding of each parameter's gradient."""

    encoding: Encoding = Encoding.NONE
    table: tuple[tuple[str, Encoding], ...] | None = None
    function: Callable[[str, Any], Any] | None = None
    # Applied to the result of `function`. Optimizers that share parameters each have their own.
    encoding_of_compressor: Callable[[Any], Encoding] | None = field(default=None, compare=False)

    def of(self, name: str, parameter: Any, elements: int, dimensions: int) -> Encoding:
        """Return the encoding for a parameter.

        If one lossy encoding is given for all parameters, vectors, small parameters and embeddings
        (by name) are exempt. A table or a function decides alone.
        """
        if self.function is not None:
            assert self.encoding_of_compressor is not None
            return self.encoding_of_compressor(self.function(name, parameter))
        if self.table is not None:
            return next((one for key, one in self.table if fnmatchcase(name, key)), Encoding.NONE)
        if not self.encoding.is_lossy:
            return self.encoding
        is_spared = (
            dimensions < 2
            or elements < _SMALLEST
            or any(fnmatchcase(f"{name.lower()}.", pattern) for pattern in _EMBEDDINGS)
        )
        return Encoding.NONE if is_spared else self.encoding

    @property
    def is_lossy(self) -> bool:
        """Whether residuals may be kept for a parameter."""
        if self.function is not None:
            return True
        if self.table is not None:
            return any(encoding.is_lossy for _, encoding in self.table)
        return self.encoding.is_lossy


def selection(compression: Any, encoding_of_compressor: Callable[[Any], Encoding]) -> Selection:
    """Return the selection by a function of names and parameters, or by a table of patterns.

    Raises ValueError for a table with a key that is not a pattern, or a value that is not a
    compressor.
    """
    if isinstance(compression, Mapping):
        for pattern in compression:
            if not isinstance(pattern, str):
                raise ValueError(f"compression={{{pattern!r}: …}}: keys are patterns of names")
        rows = [(key, encoding_of_compressor(one)) for key, one in compression.items()]
        return Selection(table=tuple(rows))
    return Selection(function=compression, encoding_of_compressor=encoding_of_compressor)
