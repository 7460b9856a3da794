"""DistributedOptimizer with op=Adasum: changes of variables are reduced instead of gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from horoscale._core import UnsupportedError
from horoscale.common.which_keras import IS_LEGACY, keras
from horoscale.keras.compression import Compression
from horoscale.keras.step import Apply

Reduce = Callable[[Sequence[Any], Sequence[Any]], list[Any]]


def check_options(optimizer: Any, compression: Any) -> None:
    """Raise UnsupportedError for an optimizer or a compression that op=Adasum does not support."""
    mixed = keras.mixed_precision if IS_LEGACY else keras.optimizers
    if isinstance(optimizer, mixed.LossScaleOptimizer):
        raise UnsupportedError(
            "a LossScaleOptimizer is not possible with op=Adasum: each rank would decide alone "
            "whether to skip a step; use bfloat16, which needs none"
        )
    if getattr(optimizer, "use_ema", False):
        raise UnsupportedError(
            "use_ema=True is not possible with op=Adasum: each rank would average its own steps"
        )
    if compression not in (Compression.none, Compression.fp16, Compression.bf16):
        raise UnsupportedError("op=Adasum takes no compression besides fp16 and bf16")


def apply_and_combine(
    gradients: list[Any],
    variables: Sequence[Any],
    apply: Apply,
    read: Callable[[Any], Any],
    reduce: Reduce,
) -> Any:
    """Do a step with this rank's own gradients, and reduce by Adasum what it changes.

    Args:
        gradients: this rank's, which `apply` takes.
        variables: what `apply` changes; the same ones on all ranks.
        apply: applies gradients to the variables.
        read: returns a copy of a variable's value.
        reduce: takes the changes and the variables, and returns what all ranks' changes make. It
            returns the changes of variables that are this rank's own as they are.

    Returns:
        What `apply` returns.
    """
    before = [read(variable) for variable in variables]
    result = apply(gradients)
    changes = [read(variable) - start for variable, start in zip(variables, before, strict=True)]
    combined = reduce(changes, variables)
    for variable, start, own, change in zip(variables, before, changes, combined, strict=True):
        if change is own:
            continue
        variable.assign(start + change)
        constraint = getattr(variable, "constraint", None)
        if constraint is not None:  # of all ranks' weights, besides those that `apply` has made
            variable.assign(constraint(variable))
    return result
