"""Insertion of a class into a user's optimizer, which remains an instance of its own class."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

Step = Callable[..., Any]


def insert_class(
    optimizer: Any, first: type[torch.optim.Optimizer], run: Callable[[Any, Step, Any], Any]
) -> None:
    """Insert the class `first` before the optimizer's own class, which becomes `_plain_class`.

    `run` receives the optimizer, its plain step() and a closure or None, and does the same as the
    step() of `first`. It is needed if a scheduler has already replaced step() on the instance,
    which hides the class' step().
    """
    plain_class = optimizer.__class__
    optimizer.__class__ = type(
        plain_class.__name__,
        (first, plain_class),
        {"_plain_class": plain_class, "__module__": plain_class.__module__},
    )
    patched_step = optimizer.__dict__.get("step")
    if patched_step is None:
        return

    @functools.wraps(patched_step)
    def step(closure: Any = None) -> Any:
        return run(optimizer, patched_step, closure)

    optimizer.step = step
