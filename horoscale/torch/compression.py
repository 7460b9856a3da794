"""Compression: tensors that travel in a smaller type.

The built-in compressors are the library's own business for tensors on the CPU: it rounds what one
host sends another, and nothing within a host. Any other class is called, and its result reduced.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from horoscale._core import Encoding, UnsupportedError
from horoscale.common.compression import (
    INT4,
    INT8,
    ONEBIT,
    Encoded,
    Selection,
    adaptive,
    divided,
    selection,
    topk,
)
from horoscale.torch.low_rank import PowerSGD, powersgd


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
    """The compressors that allreduce() and DistributedOptimizer() offer.

    int8, int4, onebit and topk(ratio) lose much of what they send; what they lose of a tensor that
    has a name is sent with the next one of that name. adaptive(error) chooses one of them, or none,
    for each tensor that has a name. powersgd(rank), for DistributedOptimizer alone, sends gradients
    as products of thin matrices, within hosts too.
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    int8 = INT8
    int4 = INT4
    onebit = ONEBIT
    topk = staticmethod(topk)
    adaptive = staticmethod(adaptive)
    powersgd = staticmethod(powersgd)


AnyCompressor = type[Compressor] | Encoded


def divide(
    compression: AnyCompressor, tensors: Iterable[torch.Tensor]
) -> tuple[Encoding, type[Compressor]]:
    """Return the encoding in which tensors travel, and what is left to do in Python.

    Tensors on a GPU are converted there, by PyTorch: NCCL sends what it is given. Raises
    UnsupportedError for a lossy one of them.
    """
    is_on_gpu = any(isinstance(tensor, torch.Tensor) and tensor.is_cuda for tensor in tensors)
    if isinstance(compression, PowerSGD):
        raise ValueError(f"{compression!r} is for DistributedOptimizer alone")
    if not is_on_gpu:
        return divided(compression, NoneCompressor, FP16Compressor, BF16Compressor)
    if isinstance(compression, Encoded):
        raise UnsupportedError(f"{compression!r} is for tensors in the host's memory")
    return Encoding.NONE, compression


def select(
    compression: Any, parameters: Sequence[torch.Tensor]
) -> tuple[Selection, type[Compressor] | PowerSGD]:
    """Return the encoding of each parameter's gradient, and what is left to do in Python.

    `compression` is a compressor, a table of compressors by patterns of names, or a function of a
    name and a parameter. Raises ValueError if it is none of these.
    """
    if isinstance(compression, PowerSGD):
        return Selection(), compression
    if _is_compressor(compression):
        encoding, compressor = divide(compression, parameters)
        return Selection(encoding), compressor
    if not isinstance(compression, Mapping) and not callable(compression):
        raise ValueError(f"compression={compression!r} is no compressor: see hvd.Compression")

    def encoding_of(one: Any) -> Encoding:
        if not _is_compressor(one):
            raise ValueError(f"compression: {one!r} is no compressor: see hvd.Compression")
        encoding, left = divide(one, parameters)
        if left is not NoneCompressor:
            raise ValueError(f"compression: {one!r} can't be chosen for single parameters")
        return encoding

    return selection(compression, encoding_of), NoneCompressor


def _is_compressor(compression: Any) -> bool:
    return hasattr(compression, "compress") and hasattr(compression, "decompress")
