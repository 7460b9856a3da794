"""What is both an error of TensorFlow and one of Python's, for programs that catch either."""

from __future__ import annotations

import tensorflow as tf


class InvalidArgumentError(tf.errors.InvalidArgumentError, ValueError):  # type: ignore[misc]
    """An argument that this rank can see to be wrong by itself.

    Horovod's kernels find these, so that its users catch TensorFlow's class.
    """
