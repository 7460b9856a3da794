"""Compression: tensors that travel in a smaller type.

The built-in compressors are the library's own business for tensors on the CPU: it rounds what one
host sends another, and nothing within a host. Any other class is called, and its result reduced.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import torch

from horoscale._core import DataType


class Compressor(ABC):
    """Changes a tensor before it is reduced and changes it back afterwards. Never instantiated."""

    @staticmethod
    @abstractmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the tensor to send, and whatever decompress() needs."""

    @staticmethod
    @abstractmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return the reduced tensor as it was before compress()."""


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return the tensor itself."""
        return tensor


class _HalfCompressor(Compressor):
    """Sends floating point tensors in a 16-bit type.

    The methods do in Python, for who calls them, what collectives leave to the library.
    """

    wire_dtype: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the tensor in 16 bits if it is a floating point one, and its own dtype."""
        if not tensor.dtype.is_floating_point:
            return tensor, tensor.dtype
        return tensor.to(cls.wire_dtype), tensor.dtype

    @classmethod
    def decompress(cls, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return the tensor in the dtype that it had."""
        return tensor.to(ctx)


class FP16Compressor(_HalfCompressor):
    """Sends floating point tensors as float16: 10 bits of mantissa, overflows beyond 65,504."""

    wire_dtype = torch.float16


class BF16Compressor(_HalfCompressor):
    """Sends floating point tensors as bfloat16: float32's range, 7 bits of mantissa."""

    wire_dtype = torch.bfloat16


class Compression:
    """The compressors that allreduce() and DistributedOptimizer() offer."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def divide(
    compression: type[Compressor], tensors: Iterable[torch.Tensor]
) -> tuple[DataType | None, type[Compressor]]:
    """Return the type in which the library has tensors travel, and what is left to do in Python.

    Tensors on a GPU are converted there, by PyTorch: NCCL sends what it is given.
    """
    if any(isinstance(tensor, torch.Tensor) and tensor.is_cuda for tensor in tensors):
        return None, compression
    if compression is FP16Compressor:
        return DataType.FLOAT16, NoneCompressor
    if compression is BF16Compressor:
        return DataType.BFLOAT16, NoneCompressor
    return None, compression
