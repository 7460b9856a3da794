"""Buckets: shared memory that gradients are reduced into, and live in from then on."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from horoscale._core import HorovodInternalError
from horoscale.common.arguments import extents_of
from horoscale.common.job import current_runtime
from horoscale.torch.tensors import adopt, in_memory_order

_ALIGNMENT = 64  # a cache line, so that no two gradients share one


def empty_shared(*size: int | Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return a tensor of zeros in memory that the other ranks of the host can reach.

    allreduce_() of such tensors, from 256 KiB up, works where they are and copies nothing, if all
    ranks use one. The other collectives read such inputs where they are, from 64 KiB up. The
    memory is freed with the last tensor that uses it, and outlives hvd.shutdown().

    Args:
        size: the shape, as numbers or as one sequence.
        dtype: the element type; None: torch's default.

    Raises:
        ValueError: hvd.init() was not called, or an extent is negative.
        HorovodInternalError: there is not enough memory.
    """
    shape = torch.Size(extents_of(size[0] if len(size) == 1 else size))
    dtype = dtype or torch.get_default_dtype()
    nbytes = shape.numel() * dtype.itemsize
    if nbytes == 0:
        return torch.empty(shape, dtype=dtype)
    return adopt(current_runtime().shared_alloc(nbytes), dtype, tuple(shape))


def make_bucket(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Return room for the gradient of each parameter, in one piece of shared memory.

    A gradient has its parameter's shape and layout (channels_last, for example), as autograd makes
    it. None for parameters without memory, on a device, or with a layout that other ranks can't be
    told of, and for all of them where there is no shared memory left: their gradients stay where
    autograd puts them.
    """
    offsets = []
    end = 0
    for parameter in parameters:
        offsets.append(end)
        nbytes = parameter.numel() * parameter.element_size() if _can_move(parameter) else 0
        end += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    try:
        memory = empty_shared(end, dtype=torch.uint8)
    except HorovodInternalError:
        return [None] * len(parameters)
    return [
        _view(memory, offset, parameter) if _can_move(parameter) else None
        for offset, parameter in zip(offsets, parameters, strict=True)
    ]


def fits(tensor: torch.Tensor, place: torch.Tensor) -> bool:
    """Return whether values may go to a place: a parameter may have changed since it was made."""
    return (
        tensor.dtype == place.dtype
        and tensor.shape == place.shape
        and tensor.device == place.device
    )


def lies_as_in(tensor: torch.Tensor, place: torch.Tensor) -> bool:
    """Return whether values that fit are in memory of their own, in the order of their place."""
    plain = type(tensor) is torch.Tensor and not (tensor.is_conj() or tensor.is_neg())
    return plain and tensor.stride() == place.stride()


def _can_move(parameter: torch.Tensor) -> bool:
    if not parameter.is_cpu or parameter.numel() == 0:
        return False
    return in_memory_order(torch.empty_like(parameter, device="meta")).is_contiguous()


def _view(memory: torch.Tensor, offset: int, parameter: torch.Tensor) -> torch.Tensor:
    strides = torch.empty_like(parameter, device="meta").stride()  # dense, in the same order
    nbytes = parameter.numel() * parameter.element_size()
    flat = memory[offset : offset + nbytes].view(parameter.dtype)
    return flat.as_strided(parameter.shape, strides)
