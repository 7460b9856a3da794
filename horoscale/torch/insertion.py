"""How the optimizer of a user becomes one of horoscale, and stays an instance of its class."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

Step = Callable[..., Any]


def insert_class(
    optimizer: Any, first: type[torch.optim.Optimizer], run: Callable[[Any, Step, Any], Any]
) -> None:
    """Put the class `first` before the optimizer's own, which becomes its `_plain_class`.

    `run` gets the optimizer, its plain step() and a closure or None, and does what step() does in
    `first`. It is called instead where a scheduler made earlier has put its own function, which
    calls the plain step, in the way of that.
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
