"""The Compression of the binding for the Keras backend."""

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
    """Return the compressor of arrays that corresponds to a compressor of Compression."""
    for name in ("none", "fp16", "bf16"):
        if compression is getattr(Compression, name):
            return getattr(OfArrays, name)
    return compression
