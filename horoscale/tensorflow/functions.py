"""Broadcast of variables and objects, so that all ranks start training with the same values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from horoscale import common
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.tensorflow.ops import broadcast_


def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Broadcast the root's values of variables to all ranks.

    Args:
        variables: a list of tf.Variable or keras.Variable, the same on all ranks.
        root_rank: the global rank of the sender.
        process_set: the ranks that take part.
        inplace: accepted for compatibility with Horovod. Values are always received into new
            memory, which the variables take over.

    Returns:
        In a TensorFlow 1 graph, the op to run; otherwise None.
    """
    assigned = broadcast_(variables, root_rank, process_set=process_set)
    in_session = not tf.executing_eagerly() and not tf.inside_function()
    return tf.group(*assigned) if in_session else None


def broadcast_global_variables(root_rank: int) -> Any:
    """Return an op that broadcasts the root's global variables of a TensorFlow 1 graph."""
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables() works only with TensorFlow 1 graphs: use "
            "hvd.broadcast_variables(model.variables, root_rank=0)"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Broadcasts the root's global variables after the session has been created."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        """`root_rank` is the global rank of the sender, `device` the device of the ops."""
        super().__init__()
        self._root_rank = root_rank
        self._device = device
        self._graph: Any = None
        self._broadcast: Any = None

    def begin(self) -> None:
        """Add the broadcast to the graph."""
        graph = tf.compat.v1.get_default_graph()
        if self._graph is not graph:
            with tf.device(self._device or None):
                self._broadcast = broadcast_global_variables(self._root_rank)
            self._graph = graph

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run the broadcast."""
        session.run(self._broadcast)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the root's object on every rank. The root also gets an unpickled copy.

    `session` is accepted for compatibility with Horovod and ignored. See the
    function of the same name in horoscale.common.
    """
    return common.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Return a function that calls broadcast_object() with these arguments."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Return the objects of all ranks in rank order. All of them are unpickled copies."""
    return common.allgather_object(obj, name, process_set)
