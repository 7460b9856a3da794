"""The Keras of this process: Keras 3, or Keras 2 (tf_keras) if TF_USE_LEGACY_KERAS selects it.

This variable selects the implementation of tf.keras. This module follows it, so that both are the
same Keras.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

IS_LEGACY = (
    os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")
    and os.environ.get("KERAS_BACKEND", "tensorflow") == "tensorflow"
)
if IS_LEGACY:
    try:
        import tf_keras as keras
    except ImportError as error:
        raise ImportError(
            f"TF_USE_LEGACY_KERAS selects Keras 2, which is not installed ({error}): pip install "
            "tf_keras in the version that matches TensorFlow, or unset the variable"
        ) from error
else:
    import keras

__all__ = ["IS_LEGACY", "backend", "keras", "to_numpy"]


def backend() -> str:
    """Return the name of the Keras backend, such as "torch"."""
    name: str = keras.backend.backend()
    return name


def to_numpy(value: Any) -> np.ndarray[Any, Any]:
    """Return a copy of a number, array, tensor or Keras variable as an array."""
    if not IS_LEGACY:
        value = keras.ops.convert_to_numpy(value)
    elif hasattr(value, "numpy"):  # a tensor or a variable
        value = value.numpy()
    array: np.ndarray[Any, Any] = np.array(value, order="C")
    return array
