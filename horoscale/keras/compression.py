"""Compression: that of the binding for Keras' backend."""

from __future__ import annotations

from typing import Any

from horoscale.common.which_keras import backend
from horoscale.numpy.compression import Compression as OfArrays

if backend() == "tensorflow":
    from horoscale.tensorflow.compression import Compression
elif backend() == "torch":
    from horoscale.torch.compression import Compression  # type: ignore[assignment]
else:
    Compression = OfArrays  # type: ignore[assignment, misc]

__all__ = ["Compression", "of_arrays"]


def of_arrays(compression: Any) -> Any:
    """Return what does with arrays what a compressor of Compression does with tensors."""
    for name in ("none", "fp16", "bf16"):
        if compression is getattr(Compression, name):
            return getattr(OfArrays, name)
    return compression
