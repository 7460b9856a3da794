"""Compression: send arrays in a smaller type.

The library itself implements the built-in compressors. It encodes only the data between hosts, not
within a host. For any other class, the binding calls compress() and reduces its result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from horoscale._core import Encoding
from horoscale.common.compression import INT4, INT8, ONEBIT, Encoded, adaptive, divided, topk
from horoscale.numpy.arrays import Array


class NoneCompressor:
    """Sends arrays unchanged."""

    @staticmethod
    def compress(tensor: Array) -> tuple[Array, Any]:
        """Return the array to send, and the context for decompress()."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Array, ctx: Any) -> Array:
        """Return the result in the original dtype."""
        return tensor if ctx is None else tensor.astype(ctx)


class FP16Compressor(NoneCompressor):
    """Sends float32 and float64 arrays as float16."""

    @staticmethod
    def compress(tensor: Array) -> tuple[Array, Any]:
        """Return the array to send, and the context for decompress()."""
        return _shorten(tensor, np.dtype(np.float16))


class BF16Compressor(NoneCompressor):
    """Sends float32 and float64 arrays as bfloat16."""

    @staticmethod
    def compress(tensor: Array) -> tuple[Array, Any]:
        """Return the array to send, and its original dtype. Raises ImportError without ml_dtypes.

        Collectives leave this conversion to the library, which does not need the package.
        """
        import ml_dtypes

        return _shorten(tensor, np.dtype(ml_dtypes.bfloat16))


def _shorten(tensor: Array, dtype: np.dtype[Any]) -> tuple[Array, Any]:
    if tensor.dtype not in (np.float32, np.float64):
        return tensor, None
    return tensor.astype(dtype), tensor.dtype


class Compression:
    """The compressors, for example in hvd.allreduce(..., compression=hvd.Compression.fp16).

    int8, int4, onebit and topk(ratio) are lossy, with error feedback: the error of a named array is
    added to the next array with that name. adaptive(error) chooses one of them, or none, for each
    named array.
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
    """Return the library's encoding of the arrays, and the compressor to run in Python."""
    return divided(compression, NoneCompressor, FP16Compressor, BF16Compressor)
