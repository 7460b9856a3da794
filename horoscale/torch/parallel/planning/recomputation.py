"""Which activations the backward pass recomputes, so that they need no memory until then.

False        none
"selective"  in each unit all except the results of matrix products and convolutions, which are
expensive to recompute
"sqrt"       in segments of about sqrt(n) of a stage's n units; each segment keeps its input
(Chen et al. 2016, arXiv:1604.06174, section 3)
True         in each unit; it keeps its input
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from horoscale._core import UnsupportedError

Recompute: TypeAlias = "bool | Literal['selective', 'sqrt']"
CHOICES: tuple[Recompute, ...] = (False, "selective", "sqrt", True)

# Operations that are expensive relative to the size of their results. Some need a newer PyTorch.
_NAMES = (
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "convolution",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
)
PRODUCTS = [
    getattr(torch.ops.aten, name).default for name in _NAMES if hasattr(torch.ops.aten, name)
]


def is_chain(model: nn.Module) -> bool:
    """Return whether a model runs its children one after the other, as nn.Sequential does."""
    return isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward


def segments(units: int) -> list[tuple[int, int]]:
    """Return the beginning and end of each segment of a stage for "sqrt"."""
    length = math.ceil(math.sqrt(units))
    return list(pairwise([*range(0, units, length), units]))


def recompute_units(units: Sequence[nn.Module], how: Recompute) -> None:
    """Make units recompute their activations, in place; recompute_segments() is for "sqrt".

    Raises:
        UnsupportedError: PyTorch is too old for "selective".
    """
    if how in (False, "sqrt"):
        return
    options: dict[str, Any] = {"use_reentrant": False}
    if how == "selective":
        try:
            from torch.utils.checkpoint import create_selective_checkpoint_contexts
        except ImportError as error:
            raise UnsupportedError('recompute="selective" needs PyTorch 2.4 or later') from error
        options["context_fn"] = functools.partial(create_selective_checkpoint_contexts, PRODUCTS)
    for unit in units:
        unit.forward = functools.partial(checkpoint, unit.forward, **options)


def recompute_segments(stage: nn.Module) -> None:
    """Make a stage, an nn.Sequential of units, recompute its segments, in place."""
    if not is_chain(stage):
        recompute_units([stage], True)
        return
    assert isinstance(stage, nn.Sequential)

    def run(begin: int, end: int, x: Any) -> Any:
        for unit in list(stage)[begin:end]:
            x = unit(x)
        return x

    def forward(x: Any) -> Any:
        for begin, end in segments(len(stage)):
            x = checkpoint(run, begin, end, x, use_reentrant=False)
        return x

    stage.forward = forward  # type: ignore[method-assign]
