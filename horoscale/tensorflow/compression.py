"""Compression: send tensors in a smaller type.

The library itself implements the built-in compressors. It encodes only the data between hosts, not
within a host. For any other class, the binding calls compress() and reduces its result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import tensorflow as tf

from horoscale._core import Encoding
from horoscale.common.compression import INT4, INT8, ONEBIT, Encoded, adaptive, divided, topk


class Compressor(ABC):
    """Converts a tensor before a reduction and back afterwards. Never instantiated."""

    @staticmethod
    @abstractmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Return the tensor to send, and the context for decompress()."""

    @staticmethod
    @abstractmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """Convert a reduced tensor back to the form that it had before compress()."""


class NoneCompressor(Compressor):
    """Sends tensors unchanged."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Return the tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """Return the tensor itself."""
        return tensor


class _HalfCompressor(Compressor):
    """Sends floating point tensors in a 16-bit type.

    Collectives leave this conversion to the library. The methods implement it for direct callers.
    """

    wire_dtype: tf.DType

    @classmethod
    def compress(cls, tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Return a floating point tensor in 16 bits, others unchanged, and the original dtype."""
        if not tensor.dtype.is_floating:
            return tensor, tensor.dtype
        return tf.cast(tensor, cls.wire_dtype), tensor.dtype

    @classmethod
    def decompress(cls, tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """Return the tensor in its original dtype."""
        return tf.cast(tensor, ctx)


class FP16Compressor(_HalfCompressor):
    """Sends floating point tensors as float16: 10 mantissa bits, overflows beyond 65,504."""

    wire_dtype = tf.float16


class BF16Compressor(_HalfCompressor):
    """Sends floating point tensors as bfloat16: the range of float32, 7 mantissa bits."""

    wire_dtype = tf.bfloat16


class Compression:
    """The compressors for allreduce() and the optimizers.

    int8, int4, onebit and topk(ratio) are lossy, with error feedback: the error of a named tensor
    is added to the next tensor with that name. adaptive(error) chooses one of them, or none, for
    each named tensor.
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    int8 = INT8
    int4 = INT4
    onebit = ONEBIT
    topk = staticmethod(topk)
    adaptive = staticmethod(adaptive)


AnyCompressor = type[Compressor] | Encoded


def divide(compression: AnyCompressor) -> tuple[Encoding, type[Compressor]]:
    """Return the library's encoding of the tensors, and the compressor to run in Python."""
    return divided(compression, NoneCompressor, FP16Compressor, BF16Compressor)
