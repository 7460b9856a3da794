"""Compression: arrays that travel in a smaller type.

The built-in compressors are the library's own business: it rounds what one host sends another, and
nothing within a host. Any other class is called, and its result reduced.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from horoscale._core import Encoding
from horoscale.common.compression import INT4, INT8, ONEBIT, Encoded, divided, topk


class NoneCompressor:
    """Leaves arrays as they are. The base class of users' own compressors."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the array to send, and what decompress() needs to know."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the reduced array as it was before compress()."""
        return tensor if ctx is None else tensor.astype(ctx)


class FP16Compressor(NoneCompressor):
    """Sends arrays of float32 and float64 as float16.

    The methods do in Python, for who calls them, what collectives leave to the library.
    """

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the array in 16 bits if it is a floating point one, and its own type."""
        if tensor.dtype not in (np.float32, np.float64):
            return tensor, None
        return tensor.astype(np.float16), tensor.dtype


class BF16Compressor(NoneCompressor):
    """Sends arrays of float32 and float64 as bfloat16, which collectives leave to the library."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the array itself: MXNet can't convert arrays to bfloat16 in general."""
        return tensor, None


class Compression:
    """The compressors that collectives and DistributedTrainer offer.

    int8, int4, onebit and topk(ratio) lose much of what they send; what they lose of an array that
    has a name is sent with the next one of that name.
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
    """Return the encoding in which arrays travel, and what is left to do in Python."""
    return divided(compression, NoneCompressor, FP16Compressor, BF16Compressor)
