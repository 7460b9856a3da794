"""Priorities that users set for gradients, by parameter or by name."""

from __future__ import annotations

import torch
from torch.utils.weak import WeakTensorKeyDictionary

_of_parameters: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
_of_names: dict[str, int] = {}


def set_priority(parameter_or_name: torch.Tensor | str, priority: int) -> None:
    """Set the priority with which DistributedOptimizer reduces the gradient of a parameter.

    By default, the parameters that the forward pass uses first have the highest priority, because
    the next forward pass needs them first: 0, -1, -2, and so on. The first step determines this
    order; that step itself uses the optimizer's order. If the ranks set different priorities, that
    of the lowest rank applies.

    Args:
        parameter_or_name: a parameter, or its name in `named_parameters`.
        priority: higher is more urgent.
    """
    if isinstance(parameter_or_name, str):
        _of_names[parameter_or_name] = priority
    else:
        _of_parameters[parameter_or_name] = priority


def priority_of(parameter: torch.Tensor, name: str, default: int) -> int:
    """Return the priority that the user set for a parameter or its name, or else the default."""
    if not _of_parameters and not _of_names:
        return default
    if parameter in _of_parameters:
        return int(_of_parameters[parameter])
    return _of_names.get(name, default)
