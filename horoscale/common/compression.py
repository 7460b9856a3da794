"""Lossy compression between hosts, the same for every framework.

The library encodes what hosts send each other, and keeps what that loses for the next values of the
same name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from horoscale._core import Encoding

C = TypeVar("C")  # the base class of a framework's compressors

# Of which so many are encoded together; see hs_encoding in the C header.
_GROUP_ELEMENTS = 4096

# What adaptive() accepts as its relative error.
_LEAST_ERROR = 0.0001
_MOST_ERROR = 6

# Smaller parameters gain nothing, and lose most: biases, and the gains of norms.
_SMALLEST = 1024

# What embeddings are called: most of their rows have no gradient in a step.
_EMBEDDINGS = ("*embed*", "*wte.*", "*wpe.*", "*lookup*")


@dataclass(frozen=True)
class Encoded:
    """A compressor that is the library's own business. Tensors are handed to it as they are."""

    encoding: Encoding
    label: str  # how users write it

    def compress(self, tensor: Any) -> tuple[Any, None]:
        """Return the tensor itself."""
        return tensor, None

    def decompress(self, tensor: Any, ctx: Any) -> Any:
        """Return the tensor itself."""
        return tensor

    def __repr__(self) -> str:
        """How users write it."""
        return f"Compression.{self.label}"


INT8 = Encoded(Encoding.INT8, "int8")
INT4 = Encoded(Encoding.INT4, "int4")
ONEBIT = Encoded(Encoding.ONEBIT, "onebit")


def topk(ratio: float) -> Encoded:
    """Return the compressor that sends this share of the elements, those of largest magnitude.

    They are chosen among each 4,096 neighbours, of which at least one is sent. Raises ValueError
    unless 0 < ratio <= 1.
    """
    if not 0 < ratio <= 1:
        raise ValueError(f"topk({ratio!r}): a share of the elements is more than 0 and at most 1")
    kept = min(math.ceil(ratio * _GROUP_ELEMENTS), _GROUP_ELEMENTS)
    return Encoded(Encoding.top_k(kept), f"topk({ratio})")


def adaptive(error: float = 0.1) -> Encoded:
    """Return the compressor that compresses no more than hides the communication.

    The set's coordinator chooses for each tensor and step: nothing, bf16, int8, int4, onebit or
    topk(0.01), depending on the network, and only those whose relative error is at most `error`.
    That is the norm of what a tensor's residuals hold, divided by the norm of its values. Raises
    ValueError unless 0.0001 <= error <= 6.
    """
    if not _LEAST_ERROR <= error <= _MOST_ERROR:
        raise ValueError(
            f"adaptive({error!r}): an error is at least {_LEAST_ERROR} and at most {_MOST_ERROR}"
        )
    return Encoded(Encoding.adaptive(round(error * 10_000)), f"adaptive({error})")


def divided(
    compression: type[C] | Encoded, none: type[C], fp16: type[C], bf16: type[C]
) -> tuple[Encoding, type[C]]:
    """Return the encoding in which tensors travel, and the compressor that runs in Python.

    `none`, `fp16` and `bf16` are the framework's classes that leave everything to the library.
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
    """Which encoding the gradient of each parameter has."""

    encoding: Encoding = Encoding.NONE
    table: tuple[tuple[str, Encoding], ...] | None = None
    function: Callable[[str, Any], Any] | None = None
    # Of what `function` returns. Optimizers that share parameters each bring their own.
    encoding_of_compressor: Callable[[Any], Encoding] | None = field(default=None, compare=False)

    def of(self, name: str, parameter: Any, elements: int, dimensions: int) -> Encoding:
        """Return the encoding for a parameter.

        A lossy one that is given for all parameters spares vectors, small ones, and those whose
        name is an embedding's; a table and a function say all themselves.
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
        """Whether residuals may be kept for some parameter."""
        if self.function is not None:
            return True
        if self.table is not None:
            return any(encoding.is_lossy for _, encoding in self.table)
        return self.encoding.is_lossy


def selection(compression: Any, encoding_of_compressor: Callable[[Any], Encoding]) -> Selection:
    """Return what a function of names and parameters, or a table of patterns, selects.

    Raises ValueError for a table with a key that is no pattern, or a value that is no compressor.
    """
    if isinstance(compression, Mapping):
        for pattern in compression:
            if not isinstance(pattern, str):
                raise ValueError(f"compression={{{pattern!r}: …}}: keys are patterns of names")
        rows = [(key, encoding_of_compressor(one)) for key, one in compression.items()]
        return Selection(table=tuple(rows))
    return Selection(function=compression, encoding_of_compressor=encoding_of_compressor)
