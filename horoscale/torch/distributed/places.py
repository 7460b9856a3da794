"""Tensors of torch.distributed's calls as flat memory that the library reads or writes.

The library receives elements without shapes, like torch.distributed's other backends: members may
pass tensors of different shapes with equal numbers of elements.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from horoscale._core import Handle, TensorArg
from horoscale.torch.tensors import (
    adopt,
    adopt_on_device,
    data_type,
    in_memory,
    is_plain,
    knows,
)

Tensors = Sequence[torch.Tensor]


def flat(tensor: torch.Tensor, moved_only: bool = False) -> torch.Tensor:
    """Return a tensor's elements in order, without a copy if possible.

    With `moved_only`, a dtype without arithmetic in the library is returned as bytes. Raises
    UnsupportedError for devices without a backend.
    """
    # A shortcut that suffices for most tensors.
    values = (tensor.detach() if is_plain(tensor) else in_memory(tensor)).view(-1)
    return values.view(torch.uint8) if moved_only and not knows(tensor.dtype) else values


def is_object(tensor: torch.Tensor) -> bool:
    """Return whether a tensor may contain a pickle, as those of the object collectives do.

    Between hosts, any modification of these makes the operation fail.
    """
    return tensor.dtype is torch.uint8


def write(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Complete an output: copy `values` there, unless flat() returned them for its memory.

    Autograd is not notified, as in torch.distributed's other backends: libraries receive into
    memory that it has saved, such as FSDP's parameters.
    """
    target = tensor.data  # has its own version counter
    if values.data_ptr() != target.data_ptr():
        if values.dtype != target.dtype:
            values = values.view(target.dtype)
        target.copy_(values.view(target.shape))


def argument(source: torch.Tensor, target: torch.Tensor | None = None) -> TensorArg:
    """Describe flat tensors: the one to read and the one to write; None: the library allocates."""
    described = TensorArg(source.data_ptr(), 0, data_type(source.dtype), (source.numel(),))
    if target is None:
        return described
    # An empty tensor has a null address, but the library needs a nonzero one. It writes nothing
    # there.
    return described._replace(out_ptr=target.data_ptr() or 1, out_rows=target.numel())


def on_host(tensor: torch.Tensor) -> bool:
    """Return whether the library writes to the given memory. On a device it allocates results."""
    return tensor.is_cpu


def allocated(handle: Handle, index: int, like: torch.Tensor, elements: int) -> torch.Tensor:
    """Return a result that the library has allocated: flat, on the device of the input `like`."""
    if on_host(like):
        return adopt(handle.output(index), like.dtype, (elements,))
    return adopt_on_device(handle.device_output(index), like.device, like.dtype, (elements,))


def joined(tensors: Tensors, moved_only: bool = False) -> torch.Tensor:
    """Return the elements of tensors one after the other, without a copy if they are contiguous."""
    parts = [flat(tensor, moved_only) for tensor in tensors]
    whole = _in_one_piece(parts)
    return torch.cat(parts) if whole is None else whole


class Room:
    """Memory to receive the elements of several tensors one after the other."""

    def __init__(self, tensors: Tensors, moved_only: bool = False) -> None:
        """Use the tensors' own memory if it is contiguous, or else allocate it."""
        self._tensors = tensors
        self._parts = [flat(tensor, moved_only) for tensor in tensors]
        self.sizes = [part.numel() for part in self._parts]
        whole = _in_one_piece(self._parts)
        self._own = whole is not None
        self.values = self._parts[0].new_empty(sum(self.sizes)) if whole is None else whole

    def argument(self, source: torch.Tensor) -> TensorArg:
        """Describe an input whose result is received here. On a device the library allocates it."""
        return argument(source, self.values if on_host(source) else None)

    def deliver(self, handle: Handle, index: int, rows: Sequence[int]) -> None:
        """Copy the received elements to the tensors, with `rows` elements of each rank."""
        if not on_host(self.values):
            self.values.copy_(allocated(handle, index, self.values, sum(rows)))
        parts = self._parts if self._own else torch.split(self.values, self.sizes)
        for tensor, part in zip(self._tensors, parts, strict=True):
            write(tensor, part)


def _in_one_piece(parts: Tensors) -> torch.Tensor | None:
    """Return flat tensors as one if they are contiguous in one storage, as chunks are."""
    first = parts[0]
    if len(parts) == 1:
        return first
    storage, end = first.untyped_storage().data_ptr(), first.data_ptr()
    total = 0
    for part in parts:
        if part.numel() and (
            part.data_ptr() != end
            or part.dtype != first.dtype
            or part.untyped_storage().data_ptr() != storage
        ):
            return None
        end += part.numel() * part.element_size()
        total += part.numel()
    return first.as_strided((total,), (1,)) if first.numel() else None
