"""Attention dropout in transformers' models whose heads are divided among ranks."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import nn

from horoscale.torch.parallel import rng
from horoscale.torch.parallel.mesh import Axis

# Names of the rate in configurations.
RATES = ("attn_pdrop", "attention_dropout", "attention_probs_dropout_prob")


def fork_attention_dropout(model: nn.Module) -> None:
    """Make divided attention draw separate random numbers on each rank for its dropout.

    Applies to models that look up their attention by name ("sdpa", "eager") in transformers'
    AttentionInterface. Other models, and models with a rate of 0, are not changed. Warns if a model
    has attention dropout and its attention cannot be replaced.
    """
    library = sys.modules.get("transformers.modeling_utils")
    kind = getattr(library, "PreTrainedModel", None)
    if kind is None:  # so that no module is one of transformers' models
        return
    done: set[int] = set()
    for module in model.modules():
        if not isinstance(module, kind) or id(module.config) in done:
            continue
        done.add(id(module.config))
        if any(getattr(module.config, rate, 0) for rate in RATES):
            _replace(module)


def _replace(model: Any) -> None:
    # Not imported by name: transformers is no dependency, not even for a type checker.
    attentions = import_module("transformers.modeling_utils").ALL_ATTENTION_FUNCTIONS
    masks = import_module("transformers.masking_utils").ALL_MASK_ATTENTION_FUNCTIONS
    name = model.config._attn_implementation
    if name == "eager" and not getattr(model.config, "reorder_and_upcast_attn", False):
        attention: Callable[..., Any] = _eager
    elif name == "sdpa":
        attention = attentions[name]
    else:
        if name not in (f"{one}_forked" for one in ("eager", "sdpa")):
            warnings.warn(
                f"{type(model).__name__}: the dropout of {name!r} attention uses the same random "
                f'numbers for the heads of all ranks; with "sdpa" each rank draws its own',
                stacklevel=2,
            )
        return
    attentions.register(f"{name}_forked", _forked(attention))
    masks.register(f"{name}_forked", masks[name])
    model.set_attn_implementation(f"{name}_forked")


def _forked(attention: Callable[..., Any]) -> Callable[..., Any]:
    """Return an attention function that draws its own numbers if heads are divided."""

    def forked(module: nn.Module, *args: Any, dropout: float = 0.0, **kwargs: Any) -> Any:
        axis = next((one.axis for one in module.children() if hasattr(one, "shards")), None)
        if not dropout or not isinstance(axis, Axis):
            return attention(module, *args, dropout=dropout, **kwargs)
        with rng.fork(axis):
            return attention(module, *args, dropout=dropout, **kwargs)

    return forked


def _eager(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call the model's "eager" attention: a function in the module of its attention's class.

    Or in the module of a base class, because users may define subclasses anywhere.
    """
    beside = (sys.modules.get(kind.__module__) for kind in type(module).__mro__)
    found = (getattr(one, "eager_attention_forward", None) for one in beside)
    attention: Callable[..., Any] = next(one for one in found if one is not None)
    return attention(module, *args, **kwargs)
