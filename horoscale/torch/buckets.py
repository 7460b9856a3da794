"""Buckets: shared memory that holds reduced gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from horoscale._core import HorovodInternalError
from horoscale.common.arguments import extents_of
from horoscale.common.job import current_runtime
from horoscale.torch.tensors import adopt, in_memory_order

_ALIGNMENT = 64  # a cache line, so that no two gradients share one


def empty_shared(*size: int | Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return a tensor of zeros in memory that the other ranks of the host can access.

    If all ranks pass such tensors, allreduce_() works on them directly from 256 KiB on, without a
    copy. The other collectives read such inputs of 64 KiB or more without a copy. The memory is
    freed with the last tensor that uses it. It remains valid after hvd.shutdown().

    Args:
        size: the shape, as numbers or as one sequence.
        dtype: the element type. None: torch's default dtype.

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
    """Return a place for the gradient of each parameter, all in one block of shared memory.

    As in autograd, a gradient has its parameter's shape and layout, such as channels_last. The
    place is None for parameters without memory, on a device, or with a layout that cannot be
    described to other ranks, and for all parameters if no shared memory is left. These gradients
    stay where autograd puts them.
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
    """Return whether a tensor fits a place. The parameter may have changed since it was created."""
    return (
        tensor.dtype == place.dtype
        and tensor.shape == place.shape
        and tensor.device == place.device
    )


def lies_as_in(tensor: torch.Tensor, place: torch.Tensor) -> bool:
    """Return whether a fitting tensor is separate from the place and has the same memory order."""
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
