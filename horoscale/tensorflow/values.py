"""Rank and size as ops of a graph, evaluated when it runs rather than when it is traced."""

from __future__ import annotations

import tensorflow as tf

from horoscale.tensorflow import loader

# As in native/kernel.cc.
_SIZE, _RANK, _LOCAL_SIZE, _LOCAL_RANK, _INCLUDED = range(5)


def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Return the number of ranks of a process set as an int32 scalar."""
    return _ask(_SIZE, process_set_id, name)


def rank_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Return this process' rank in a process set, or -1 outside the set, as an int32 scalar."""
    return _ask(_RANK, process_set_id, name)


def local_size_op(name: str | None = None) -> tf.Tensor:
    """Return the number of ranks on this host as an int32 scalar."""
    return _ask(_LOCAL_SIZE, 0, name)


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """Return this process' rank on this host as an int32 scalar."""
    return _ask(_LOCAL_RANK, 0, name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Return 1 if this process is in a process set and 0 otherwise, as an int32 scalar."""
    return _ask(_INCLUDED, process_set_id, name)


def _ask(question: int, process_set_id: int, name: str | None) -> tf.Tensor:
    return loader.op("Topology")(
        question=question, process_set=process_set_id, tensor_name="", priority=0, name=name
    )
