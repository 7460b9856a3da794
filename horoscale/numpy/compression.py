"""Compression: arrays that travel in a smaller type.

The built-in compressors are the library's own business: it rounds what one host sends another, and
nothing within a host. Any other class is called, and its result reduced.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from horoscale._core import Encoding
from horoscale.common.compression import INT4, INT8, ONEBIT, Encoded, adaptive, divided, topk
from horoscale.numpy.arrays import Array


class NoneCompressor:
    """Leaves arrays as they are."""

    @staticmethod
    def compress(tensor: Array) -> tuple[Array, Any]:
        """Return what is sent, and what decompress() needs to know."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Array, ctx: Any) -> Array:
        """Return the result in its original type."""
        return tensor if ctx is None else tensor.astype(ctx)


class FP16Compressor(NoneCompressor):
    """Sends arrays of float32 and float64 as float16."""

    @staticmethod
    def compress(tensor: Array) -> tuple[Array, Any]:
        """Return what is sent, and what decompress() needs to know."""
        return _shorten(tensor, np.dtype(np.float16))


class BF16Compressor(NoneCompressor):
    """Sends arrays of float32 and float64 as bfloat16."""

    @staticmethod
    def compress(tensor: Array) -> tuple[Array, Any]:
        """Return what is sent, and the original type. Raises ImportError without ml_dtypes.

        Collectives leave this to the library, which needs no such package.
        """
        import ml_dtypes

        return _shorten(tensor, np.dtype(ml_dtypes.bfloat16))


def _shorten(tensor: Array, dtype: np.dtype[Any]) -> tuple[Array, Any]:
    if tensor.dtype not in (np.float32, np.float64):
        return tensor, None
    return tensor.astype(dtype), tensor.dtype


class Compression:
    """The ways to compress: hvd.allreduce(..., compression=hvd.Compression.fp16).

    int8, int4, onebit and topk(ratio) lose much of what they send; what they lose of an array that
    has a name is sent with the next one of that name. adaptive(error) chooses one of them, or none,
    for each array that has a name.
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    int8 = INT8
    int4 = INT4
    onebit = ONEBIT
    topk = staticmethod(topk)
    adaptive = staticmethod(adaptive)


AnyCompressor = type[NoneCompressor] | Encoded


def divide(compression: AnyCompressor) -> tuple[Encoding, type[NoneCompressor]]:
    """Return the encoding in which arrays travel, and what is left to do in Python."""
    return divided(compression, NoneCompressor, FP16Compressor, BF16Compressor)
