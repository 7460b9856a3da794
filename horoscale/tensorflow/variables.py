"""The identity of variables, and the priorities that users set for their gradients."""

from __future__ import annotations

import weakref
from typing import Any

_of_variables: dict[int, int] = {}  # by key_of()
_of_names: dict[str, int] = {}


def key_of(variable: Any) -> int:
    """Return the identity of a variable, equal for a keras.Variable and the one that it wraps."""
    return id(getattr(variable, "handle", variable))


def set_priority(variable_or_name: Any, priority: int) -> None:
    """Set the priority with which the tape and the optimizers reduce a variable's gradient.

    By default, the first variables have the highest priority, because the next step's forward pass
    needs them first: 0, -1, -2, and so on. A group has the highest priority of its members. A
    tf.function uses the priorities at the time of tracing. In eager mode, all gradients are reduced
    in one operation, and priorities have no effect. If the ranks set different priorities, that of
    the lowest rank applies.

    Args:
        variable_or_name: a tf.Variable or keras.Variable; or its name (for Keras, its path).
        priority: higher is more urgent.
    """
    if isinstance(variable_or_name, str):
        _of_names[variable_or_name] = priority
        return
    key = key_of(variable_or_name)
    if key not in _of_variables:  # another variable may later get the id
        weakref.finalize(variable_or_name, _of_variables.pop, key, None).atexit = False
    _of_variables[key] = priority


def priority_of(variable: Any, default: int) -> int:
    """Return the priority that the user set for a variable or its name, or else the default."""
    if not _of_variables and not _of_names:
        return default
    name: str = getattr(variable, "path", "") or getattr(variable, "name", "")
    return _of_variables.get(key_of(variable), _of_names.get(name, default))
