"""Priorities that users give to gradients, by parameter or by name."""

from __future__ import annotations

import torch
from torch.utils.weak import WeakTensorKeyDictionary

_of_parameters: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
_of_names: dict[str, int] = {}


def set_priority(parameter_or_name: torch.Tensor | str, priority: int) -> None:
    """Set how urgent the gradient of a parameter is for DistributedOptimizer, from now on.

    Without it, the parameters that the forward pass uses first are the most urgent ones, since the
    next one needs them first: 0, -1, -2, and so on. The first step shows which they are; in it they
    have the optimizer's order. Where the ranks give different priorities the lowest rank's
    counts.

    Args:
        parameter_or_name: a parameter, or the name that it has in `named_parameters`.
        priority: higher is more urgent.
    """
    if isinstance(parameter_or_name, str):
        _of_names[parameter_or_name] = priority
    else:
        _of_parameters[parameter_or_name] = priority


def priority_of(parameter: torch.Tensor, name: str, default: int) -> int:
    """Return what the user set for a parameter, or for its name, or the default."""
    if not _of_parameters and not _of_names:
        return default
    if parameter in _of_parameters:
        return int(_of_parameters[parameter])
    return _of_names.get(name, default)
