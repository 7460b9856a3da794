"""Compression: send tensors in a smaller type.

For tensors on the CPU, the library itself implements the built-in compressors. It encodes only the
data between hosts, not within a host. For any other class, the binding calls compress() and reduces
its result.
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
    """Converts a tensor before a reduction and back afterwards. Never instantiated."""

    @staticmethod
    @abstractmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the tensor to send, and the context for decompress()."""

    @staticmethod
    @abstractmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Convert a reduced tensor back to the form that it had before compress()."""


class NoneCompressor(Compressor):
    """Sends tensors unchanged."""

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

    Collectives leave this conversion to the library. The methods implement it for direct callers.
    """

    wire_dtype: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return a floating point tensor in 16 bits, others unchanged, and the original dtype."""
        if not tensor.dtype.is_floating_point:
            return tensor, tensor.dtype
        return tensor.to(cls.wire_dtype), tensor.dtype

    @classmethod
    def decompress(cls, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return the tensor in its original dtype."""
        return tensor.to(ctx)


class FP16Compressor(_HalfCompressor):
    """Sends floating point tensors as float16: 10 mantissa bits, overflows beyond 65,504."""

    wire_dtype = torch.float16


class BF16Compressor(_HalfCompressor):
    """Sends floating point tensors as bfloat16: the range of float32, 7 mantissa bits."""

    wire_dtype = torch.bfloat16


class Compression:
    """The compressors for allreduce(), reducescatter(), par.shard() and DistributedOptimizer().

    int8, int4, onebit and topk(ratio) are lossy, with error feedback: the error of a named tensor
    is added to the next tensor with that name. adaptive(error) chooses one of them, or none, for
    each named tensor. powersgd(rank), for DistributedOptimizer only, sends gradients as products of
    thin matrices, also within hosts.
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
    """Return the library's encoding of the tensors, and the compressor to run in Python.

    PyTorch converts tensors on a GPU there, because NCCL does not encode them. Raises
    UnsupportedError if a tensor is on a GPU and the compressor is lossy.
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
    """Return the encoding of each parameter's gradient, and the compressor to run in Python.

    `compression` is a compressor, a mapping from name patterns to compressors, or a function of a
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
