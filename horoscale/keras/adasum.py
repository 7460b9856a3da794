"""DistributedOptimizer with op=Adasum: combine the ranks' updates instead of their gradients."""

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
    """Run a step with this rank's local gradients, and reduce the updates by Adasum.

    Args:
        gradients: this rank's gradients, passed to `apply`.
        variables: the variables that `apply` updates; the same on all ranks.
        apply: applies gradients to the variables.
        read: returns a copy of a variable's value.
        reduce: combines all ranks' updates of the variables. It returns the updates of local
            variables unchanged.

    Returns:
        The result of `apply`.
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
        if constraint is not None:  # for the combined weights; `apply` has done it for this rank's
            variable.assign(constraint(variable))
    return result
