"""Names of operations, which match the ranks' calls."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph


def operation_name(
    kind: str, name: str | None, tensor: Any, ignore_name_scope: bool = False
) -> str:
    """Return the name of an operation on a tensor; "" means matching by call order.

    Call order only works for eager calls, because the ops of a graph run in any order. In a graph,
    the name consists of those of the graph and the tensor, which are equal on all ranks that trace
    the same code.
    """
    if name is not None:
        return name
    if tf.executing_eagerly():
        return ""
    source = tensor.name.replace(":", "_").replace("/", ".")
    if ignore_name_scope:
        source = source.rsplit(".", 1)[-1]
    return unique_name(f"{kind}.{source}")


def gradient_name(name: bytes, suffix: str = "grad") -> str:
    """Return the name of the operation that computes the gradient of another one."""
    if not name:
        return ""
    base = f"{name.decode()}.{suffix}"
    return base if tf.executing_eagerly() else unique_name(base)


def unique_name(base: str) -> str:
    """Return a name that is unique in the traced function, including its branches and loops.

    It includes the function's name, because functions that run concurrently may have ops with equal
    names. It excludes the names of branches, which depend on what this process has traced before.
    """
    graph = tf.compat.v1.get_default_graph()
    in_session = not tf.compat.v1.executing_eagerly_outside_functions()
    while isinstance(graph, FuncGraph) and (in_session or isinstance(graph.outer_graph, FuncGraph)):
        graph = graph.outer_graph
    scope = getattr(graph, "name", "graph")
    return f"{scope}.{graph.unique_name(base)}"
