"""Compression: tensors that travel in a smaller type.

The built-in compressors are the library's own business: it rounds what one host sends another, and
nothing within a host. Any other class is called, and its result reduced.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import tensorflow as tf

from horoscale._core import Encoding
from horoscale.common.compression import INT4, INT8, ONEBIT, Encoded, adaptive, divided, topk


class Compressor(ABC):
    """Changes a tensor before it is reduced and changes it back afterwards. Never instantiated."""

    @staticmethod
    @abstractmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Return the tensor to send, and whatever decompress() needs."""

    @staticmethod
    @abstractmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """Return the reduced tensor as it was before compress()."""


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

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

    The methods do in Python, for who calls them, what collectives leave to the library.
    """

    wire_dtype: tf.DType

    @classmethod
    def compress(cls, tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Return the tensor in 16 bits if it is a floating point one, and its own dtype."""
        if not tensor.dtype.is_floating:
            return tensor, tensor.dtype
        return tf.cast(tensor, cls.wire_dtype), tensor.dtype

    @classmethod
    def decompress(cls, tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """Return the tensor in the dtype that it had."""
        return tf.cast(tensor, ctx)


class FP16Compressor(_HalfCompressor):
    """Sends floating point tensors as float16: 10 bits of mantissa, overflows beyond 65,504."""

    wire_dtype = tf.float16


class BF16Compressor(_HalfCompressor):
    """Sends floating point tensors as bfloat16: float32's range, 7 bits of mantissa."""

    wire_dtype = tf.bfloat16


class Compression:
    """The compressors that allreduce() and the optimizers offer.

    int8, int4, onebit and topk(ratio) lose much of what they send; what they lose of a tensor that
    has a name is sent with the next one of that name. adaptive(error) chooses one of them, or none,
    for each tensor that has a name.
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
    """Return the encoding in which tensors travel, and what is left to do in Python."""
    return divided(compression, NoneCompressor, FP16Compressor, BF16Compressor)
