"""What is both an error of TensorFlow and one of Python's, for programs that catch either."""

from __future__ import annotations

import tensorflow as tf

from horoscale.common import exceptions


class InvalidArgumentError(tf.errors.InvalidArgumentError, ValueError):  # type: ignore[misc]
    """An argument that this rank can see to be wrong by itself.

    Horovod's kernels find these, so that its users catch TensorFlow's class.
    """


class DuplicateNameError(tf.errors.InvalidArgumentError, exceptions.DuplicateNameError):  # type: ignore[misc]
    """An operation of this name is pending on the process set."""
