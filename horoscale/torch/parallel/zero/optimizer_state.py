"""The state of a ZeroOptimizer: a rank's own part, and the whole state by parameter names."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, Protocol

import torch

from horoscale.common import allgather_object
from horoscale.torch.parallel.zero.elementwise import is_elementwise
from horoscale.torch.parallel.zero.flat import FlatShards
from horoscale.torch.parallel.zero.runs import Run
from horoscale.torch.parallel.zero.sharded import Sharded

_MASTER = "master"
_EXCHANGE = "horoscale.zero.state"


class Divided(Protocol):
    """The interface of a ZeroOptimizer that these functions use."""

    sharded: Sharded
    runs: list[list[Run]]
    names: list[list[str]]
    state: Any
    elementwise: Mapping[str, torch.dtype]  # state tensors with a value for each element

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups."""


def own_part(optimizer: Divided) -> dict[str, Any]:
    """Return this rank's master weights, and data to identify its part."""
    axis = optimizer.sharded.axis
    return {
        "ranks": axis.size,
        "rank": axis.rank,
        "runs": [
            [
                (one.name, tuple(one.shape), one.begin, one.end)
                for run in of_group
                for one in run.owned
            ]
            for of_group in optimizer.runs
        ],
        "masters": [
            None if one.master is one.own else one.master.clone()
            for one in optimizer.sharded.trained
        ],
    }


@torch.no_grad()
def load_own_part(optimizer: Divided, saved: Mapping[str, Any] | None) -> None:
    """Load the master weights, if the state was saved from this part.

    Raises ValueError if it was not.
    """
    expected = own_part(optimizer)
    if saved is None:
        raise ValueError(
            "this is not the state of a ZeroOptimizer's rank; see load_whole_state_dict()"
        )
    for key in ("ranks", "rank", "runs"):
        if saved[key] != expected[key]:
            what = "another division of the model" if key == "runs" else f"{key}={saved[key]}"
            raise ValueError(
                f"this state is of {what}, but this is rank {expected['rank']} of "
                f"{expected['ranks']}: load it where it was saved, or use whole_state_dict()"
            )
    if any(master is not None for master in saved["masters"]):
        optimizer.sharded.begin_update()
        for shards, master in zip(optimizer.sharded.trained, saved["masters"], strict=True):
            if master is not None:
                shards.master.copy_(master)
        optimizer.sharded.publish()


def whole(optimizer: Divided) -> dict[str, Any]:
    """Gather the state of all ranks by names. Collective."""
    runs_of: dict[int, list[Run]] = {}
    for run in (run for of_group in optimizer.runs for run in of_group if run.owned):
        runs_of.setdefault(id(run.shards), []).append(run)
    state: dict[str, dict[str, Any]] = {}
    for shards in optimizer.sharded.trained:
        for name, values in _gather(optimizer, shards, runs_of.get(id(shards), [])).items():
            state[name] = values
    known = {name for names in optimizer.names for name in names}
    groups = [
        {key: value for key, value in group.items() if key != "params"} | {"params": list(names)}
        for group, names in zip(optimizer.param_groups, optimizer.names, strict=True)
    ]
    return {
        "state": {name: one for name, one in state.items() if name in known},
        "param_groups": groups,
    }


def _gather(optimizer: Divided, shards: FlatShards, runs: list[Run]) -> dict[str, dict[str, Any]]:
    """Return the states of the parameters of one FlatShards."""
    single: dict[str, dict[str, Any]] = {}  # values that are not elementwise
    kinds: dict[str, torch.dtype] = {}
    for run in runs:
        state, numel = optimizer.state.get(run.tensor, {}), run.end - run.begin
        for key, value in state.items():
            if is_elementwise(value, numel):
                kinds[key] = value.dtype
        for owned in run.owned:
            single[owned.name] = {
                key: value for key, value in state.items() if not is_elementwise(value, numel)
            }
    if shards.axis.set is not None:
        answers = allgather_object((single, kinds), _EXCHANGE, shards.axis.set)
        single = {name: value for one, _ in answers for name, value in one.items()}
        kinds = {key: dtype for _, one in answers for key, dtype in one.items()}
    found = {place.name: dict(single.get(place.name, {})) for place in shards.places}
    for key in sorted(kinds):
        flat = torch.zeros(shards.length, dtype=kinds[key])
        for run in runs:
            value = optimizer.state.get(run.tensor, {}).get(key)
            if value is not None:
                flat[run.begin : run.end] = value
        for name, value in shards.gathered(flat).items():
            found[name][key] = value
    if shards.master is not shards.own:
        for name, value in shards.gathered(shards.master).items():
            found[name][_MASTER] = value
    return found


@torch.no_grad()
def load_whole(optimizer: Divided, state: Mapping[str, Any]) -> None:
    """Load this rank's part of a whole state; see whole()."""
    saved, groups = state["state"], state["param_groups"]
    if len(groups) != len(optimizer.param_groups):
        raise ValueError(
            f"the state has {len(groups)} parameter groups, the optimizer "
            f"{len(optimizer.param_groups)}"
        )
    for names, group in zip(optimizer.names, groups, strict=True):
        missing = sorted(set(names) - set(group["params"]))
        if missing:
            raise KeyError(f"the state's parameter group has no {', '.join(missing)}")
    shapes = _shapes(optimizer)
    elementwise = {*optimizer.elementwise, _MASTER}
    for name, shape in shapes.items():
        for key, value in saved.get(name, {}).items():
            if not _is_single(key, value, elementwise) and value.shape != shape:
                raise ValueError(
                    f"{key} of {name} is {tuple(value.shape)} in the state, the "
                    f"parameter {tuple(shape)}"
                )
    # Decided by what all ranks know, not by this rank's part, so that all of them wait, or none.
    has_masters = any(one.master is not one.own for one in optimizer.sharded.trained) or any(
        _MASTER in saved.get(name, {}) for name in shapes
    )
    if has_masters:
        optimizer.sharded.begin_update()
    for group, options in zip(optimizer.param_groups, groups, strict=True):
        group.update({key: value for key, value in options.items() if key != "params"})
    for run in (run for of_group in optimizer.runs for run in of_group):
        state_of_run: dict[str, Any] = {}
        for owned in run.owned:
            for key, value in saved.get(owned.name, {}).items():
                if _is_single(key, value, elementwise):
                    state_of_run[key] = value.clone() if torch.is_tensor(value) else value
                    continue
                part = value.reshape(-1)[owned.begin : owned.end]
                if key == _MASTER:
                    run.shards.master[owned.offset :][: len(part)].copy_(part)
                    continue
                place = owned.offset - run.begin
                if key not in state_of_run:
                    state_of_run[key] = torch.zeros(run.end - run.begin, dtype=value.dtype)
                state_of_run[key][place : place + len(part)] = part
        if state_of_run:
            optimizer.state[run.tensor] = state_of_run
    if has_masters:
        optimizer.sharded.publish()


def _shapes(optimizer: Divided) -> dict[str, torch.Size]:
    """Return the shapes of the optimizer's parameters by name."""
    known = {name for names in optimizer.names for name in names}
    places = (place for shards in optimizer.sharded.trained for place in shards.places)
    return {place.name: place.shape for place in places if place.name in known}


def _is_single(key: str, value: object, elementwise: Set[str]) -> bool:
    """Return whether a value belongs to a whole parameter, such as "step".

    An elementwise state of a parameter without dimensions has no dimensions either.
    """
    return not torch.is_tensor(value) or (value.dim() == 0 and key not in elementwise)
