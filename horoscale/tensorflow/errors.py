"""Exceptions that are both TensorFlow's and Python's, for programs that catch either."""

from __future__ import annotations

import tensorflow as tf

from horoscale.common import exceptions


class InvalidArgumentError(tf.errors.InvalidArgumentError, ValueError):  # type: ignore[misc]
    """An invalid argument that this rank can detect alone.

    In Horovod the kernels detect these errors, so its users catch TensorFlow's class.
    """


class DuplicateNameError(tf.errors.InvalidArgumentError, exceptions.DuplicateNameError):  # type: ignore[misc]
    """An operation with this name is pending on the process set."""
