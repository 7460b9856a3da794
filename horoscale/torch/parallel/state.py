"""Conversion between whole and divided models, for checkpoints and comparisons."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from horoscale.common import broadcast_object
from horoscale.torch.movement import allgather
from horoscale.torch.parallel.division import Shard
from horoscale.torch.parallel.zero.sharded import gathered, sharded_in


def shards_by_name(model: nn.Module) -> dict[str, Shard]:
    """Return the shards of all divided parameters, by their names in state_dict().

    A parameter that several modules share has several names. Parameters that exist only on other
    ranks are included.
    """
    return {
        f"{prefix}.{name}".lstrip("."): shard
        for prefix, module in model.named_modules(remove_duplicate=False)
        for name, shard in getattr(module, "shards", {}).items()
    }


def whole_state_dict(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the state_dict() of the undivided model, on every rank. Collective.

    Gathered tensors are new; others are the model's own. For a model from shard(), all are new.

    Raises ValueError if ranks have unexpected shards.
    """
    with gathered(model):
        own = {name: one.detach() for name, one in model.state_dict().items()}
        if sharded_in(model):
            own = {name: one.clone() for name, one in own.items()}
    return _whole(model, own)


def whole_gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the gradients of all parameters that have one, like whole_state_dict(). Collective.

    Either all ranks of an axis have a gradient of a divided parameter, or none of them.
    """
    reduced = {key: one for of in sharded_in(model) for key, one in of.whole_gradients().items()}
    own = {
        name: reduced.get(id(parameter), parameter.grad)
        for name, parameter in model.named_parameters(remove_duplicate=False)
    }
    return _whole(model, {name: one for name, one in own.items() if one is not None})


def load_whole_state_dict(model: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Load this rank's shards of a whole model's state_dict(), in place.

    Collective only if shard() has divided the model.

    Raises:
        KeyError: the state lacks an entry of the model.
        ValueError: an entry has another shape.
    """
    shards = shards_by_name(model)
    missing = sorted(set(model.state_dict()) - set(state))
    if missing:
        raise KeyError(f"the state has no {', '.join(missing)}")
    sharded = sharded_in(model)
    flat = {key for one in sharded for key in one.names}
    values: dict[int, torch.Tensor] = {}
    with torch.no_grad():
        for name, target in model.state_dict(keep_vars=True).items():
            value = shards[name].of(state[name]) if name in shards else state[name]
            if value.shape != target.shape:
                raise ValueError(
                    f"{name}: this rank's shard is {tuple(target.shape)}, but of the state's "
                    f"{tuple(state[name].shape)} it would be {tuple(value.shape)}"
                )
            if id(target) in flat:
                values[id(target)] = value
            else:
                target.copy_(value)
    for one in sharded:
        one.load(values)
        one.free()


def _whole(model: nn.Module, own: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    shards = shards_by_name(model)
    found = dict(own)
    for name in sorted(shards):
        value = _gather(own.get(name), shards[name])
        if value is not None:
            found[name] = value
    return {name: found[name] for name in sorted(found)}


def _gather(own: torch.Tensor | None, shard: Shard) -> torch.Tensor | None:
    axis = shard.axis
    if axis.set is None:
        return own
    if shard.dim is None:
        sent: torch.Tensor | None = broadcast_object(own, axis.ranks[0], process_set=axis.set)
        return sent
    if own is None:
        return None
    rest = [*own.shape[: shard.dim], *own.shape[shard.dim + 1 :]]
    rows = own.movedim(shard.dim, 0).contiguous()
    joined = allgather(rows, process_set=axis.set)
    whole = sum(shard.sizes) * sum(shard.parts) // shard.parts[0]
    if list(joined.shape) != [whole, *rest]:
        raise ValueError(
            f"the shards on axis {axis.name} have {joined.shape[0]} of dimension {shard.dim} in "
            f"all, but the whole has {whole}"
        )
    extents = [size * sum(shard.parts) // shard.parts[0] for size in shard.sizes]
    parts = [part.movedim(0, shard.dim) for part in torch.split(joined, extents)]
    return shard.whole(parts)
