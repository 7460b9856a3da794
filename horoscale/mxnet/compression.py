"""Compression: send arrays in a smaller type.

The library itself implements the built-in compressors. It encodes only the data between hosts, not
within a host. For any other class, the binding calls compress() and reduces its result.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from horoscale._core import Encoding
from horoscale.common.compression import INT4, INT8, ONEBIT, Encoded, divided, topk


class NoneCompressor:
    """Sends arrays unchanged. The base class of custom compressors."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the array to send, and the context for decompress()."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Convert a reduced array back to the form that it had before compress()."""
        return tensor if ctx is None else tensor.astype(ctx)


class FP16Compressor(NoneCompressor):
    """Sends float32 and float64 arrays as float16.

    Collectives leave this conversion to the library. The methods implement it for direct callers.
    """

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return a floating point array in 16 bits, others unchanged, and the original dtype."""
        if tensor.dtype not in (np.float32, np.float64):
            return tensor, None
        return tensor.astype(np.float16), tensor.dtype


class BF16Compressor(NoneCompressor):
    """Sends float32 and float64 arrays as bfloat16. Collectives leave this to the library."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the array itself, because MXNet cannot convert arrays to bfloat16 in general."""
        return tensor, None


class Compression:
    """The compressors for collectives and DistributedTrainer.

    int8, int4, onebit and topk(ratio) are lossy, with error feedback: the error of a named array is
    added to the next array with that name.
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    int8 = INT8
    int4 = INT4
    onebit = ONEBIT
    topk = staticmethod(topk)


AnyCompressor = type[NoneCompressor] | Encoded


def divide(compression: AnyCompressor) -> tuple[Encoding, type[NoneCompressor]]:
    """Return the library's encoding of the arrays, and the compressor to run in Python."""
    return divided(compression, NoneCompressor, FP16Compressor, BF16Compressor)
