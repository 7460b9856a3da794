"""PyTorch tensors in snapshots, stored as bytes."""

from __future__ import annotations

from typing import Any

import torch

from horoscale.elastic.arrays import Bytes, Spec, register_kind

_TYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "F32": torch.float32,
    "I64": torch.int64,
    "F64": torch.float64,
    "C64": torch.complex64,
    "C128": torch.complex128,
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}


class TorchTensors:
    """Dense tensors on any device. New ones are on the host, from which load_state_dict() copies.

    Parameters and other tensor subclasses are not included: outside a state_dict(), they are
    pickled.
    """

    name = "torch"

    def matches(self, value: Any) -> bool:
        """Return whether `value` is a plain dense tensor."""
        return (
            type(value) is torch.Tensor
            and value.layout is torch.strided
            and (value.dtype in _NAMES)
        )

    def spec(self, array: Any) -> Spec:
        """Return the element type and shape."""
        return Spec(_NAMES[array.dtype], tuple(array.shape))

    def read(self, array: Any, into: Bytes) -> None:
        """Copy the elements, in C order, directly also from a device."""
        if into.size:
            target = torch.from_numpy(into).view(array.dtype).view(array.shape)
            target.copy_(array.detach())

    def make(self, spec: Spec, data: Bytes) -> Any:
        """Return a new tensor with these bytes, on the host."""
        tensor = torch.empty(spec.shape, dtype=_TYPES[spec.dtype])
        if data.size:
            tensor.view(-1).view(torch.uint8).copy_(torch.from_numpy(data))
        return tensor


def register() -> None:
    """Make snapshots store tensors as bytes."""
    register_kind(TorchTensors())
