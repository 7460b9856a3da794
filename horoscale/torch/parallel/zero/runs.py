"""Runs: the tensors of this rank's part that an optimizer updates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from horoscale.torch.parallel.zero.flat import FlatShards, Owned
from horoscale.torch.parallel.zero.sharded import Sharded

Group = Mapping[str, Any]


class Run(NamedTuple):
    """A tensor of the optimizer: neighboring elements of one FlatShards in one parameter group.

    Attributes:
        shards: the FlatShards with the `master` of which it is a part.
        begin: where it begins in the master.
        end: where it ends.
        owned: its parts of parameters.
        tensor: the tensor that the optimizer has.
    """

    shards: FlatShards
    begin: int
    end: int
    owned: tuple[Owned, ...]
    tensor: nn.Parameter


def as_groups(
    params: Iterable[nn.Parameter] | Iterable[Group] | None, sharded: Sharded
) -> list[dict[str, Any]]:
    """Return parameter groups from an optimizer's argument; None: all trained parameters."""
    if params is None:
        return [{"params": [one for shards in sharded.trained for one in shards.parameters]}]
    listed: list[Any] = list(params)
    if not all(isinstance(one, Mapping) for one in listed):
        listed = [{"params": listed}]
    groups = []
    for group in listed:
        members = group["params"]
        groups.append({**group, "params": [members] if torch.is_tensor(members) else list(members)})
    return groups


def names_by_group(
    groups: Sequence[Group], sharded: Sharded
) -> tuple[list[list[str]], dict[str, int]]:
    """Return the names of each group's parameters, and each parameter's group.

    Raises ValueError for anything that is not a trained parameter of the model, and for a parameter
    in two groups.
    """
    trained = {
        id(parameter): place.name
        for shards in sharded.trained
        for place, parameter in zip(shards.places, shards.parameters, strict=True)
    }
    number_of: dict[str, int] = {}
    names: list[list[str]] = []
    for number, group in enumerate(groups):
        names.append([])
        for parameter in group["params"]:
            name = trained.get(id(parameter))
            if name is None:
                raise ValueError(
                    f"group {number} has a parameter of shape {tuple(parameter.shape)} that is "
                    "none of the model's trained ones"
                )
            if name in number_of:
                raise ValueError(f"{name} is in group {number_of[name]} and in group {number}")
            number_of[name] = number
            names[-1].append(name)
    return names, number_of


def runs_of_group(sharded: Sharded, number_of: Mapping[str, int], number: int) -> Iterator[Run]:
    """Yield the tensors of a group, of each FlatShards; at least one."""
    found = False
    for shards in sharded.trained:
        parts: list[list[Owned]] = []
        before = None
        for owned in shards.owned():
            group = number_of.get(owned.name)
            if group == number:
                if before != number:
                    parts.append([])
                parts[-1].append(owned)
            before = group
        for part in parts:
            found = True
            yield _run(shards, part)
    if not found:  # optimizers need a tensor in each group
        yield _run(sharded.trained[0], [])


def _run(shards: FlatShards, owned: list[Owned]) -> Run:
    begin = owned[0].offset if owned else 0
    end = owned[-1].offset + owned[-1].end - owned[-1].begin if owned else 0
    return Run(shards, begin, end, tuple(owned), nn.Parameter(shards.master[begin:end]))
