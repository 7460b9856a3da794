"""Tensors for the tests of the TensorFlow binding, and calls in eager mode and in graphs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from support import reference

import horoscale.tensorflow as hvd

# Threads that run a graph's operations; 0: one per core.
tf.config.threading.set_inter_op_parallelism_threads(int(os.environ.get("TEST_THREADS", "0")))


def values(dtype: str, shape: int | tuple[int, ...], rank: int, seed: int = 0) -> tf.Tensor:
    """The input of a rank, which every rank can compute."""
    return tf.constant(reference.values(dtype, shape, rank, seed))


def all_values(dtype: str, shape: int | tuple[int, ...], seed: int = 0) -> list[tf.Tensor]:
    """The inputs of all ranks."""
    return [values(dtype, shape, rank, seed) for rank in range(hvd.size())]


def reduced(inputs: Sequence[tf.Tensor], op: str) -> np.ndarray:
    """The expected result of allreduce()."""
    return reference.reduced([one.numpy() for one in inputs], op)


def check(result: tf.Tensor, expected: Any, exact: bool = True) -> None:
    """Compare dtype, shape and values: bit by bit, or with a tolerance."""
    found, wanted = result.numpy(), np.asarray(expected)
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    if exact:
        assert found.tobytes() == wanted.tobytes()
    else:
        precision = 1e-2 if found.dtype.itemsize <= 2 else 1e-5
        np.testing.assert_allclose(
            found.astype(complex), wanted.astype(complex), precision, precision
        )


def call(mode: str, function: Callable[..., Any], *tensors: tf.Tensor) -> Any:
    """Call a function in eager mode, or as a tf.function."""
    return (tf.function(function) if mode == "graph" else function)(*tensors)
