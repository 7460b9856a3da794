"""Units: groups of a model's parameters that are gathered, reduced and freed together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import torch
from torch import nn

UnitSpec = type[nn.Module] | str | Sequence[type[nn.Module] | str]


@dataclass
class Unit:
    """Parameters that are handled together.

    Attributes:
        name: the name of the module in the model; "" for the model itself.
        module: the module that uses them. Units' modules are either nested or disjoint.
        parameters: the parameters by name, each once.
    """

    name: str
    module: nn.Module
    parameters: dict[str, nn.Parameter] = field(default_factory=dict)


def find_units(model: nn.Module, unit: UnitSpec | None) -> list[Unit]:
    """Divide the parameters of a model into units, omitting units without parameters.

    A parameter belongs to the innermost unit that contains its module. If several units use it, as
    a tied embedding, it belongs to the model itself, which is the first unit.

    Args:
        model: the model.
        unit: a class of modules, a pattern of their names such as "blocks.*", or several of these.
            "*" matches within a part of a name between dots. None: only the model is a unit.

    Raises:
        ValueError: a class or pattern matches no module of the model.
    """
    chosen = _matching(model, () if unit is None else _as_tuple(unit))
    units = {"": Unit("", model)} | {name: Unit(name, module) for name, module in chosen.items()}
    owner: dict[int, str] = {}
    names: dict[int, str] = {}
    by_id: dict[int, nn.Parameter] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        of_unit = _innermost(name, units)
        if owner.setdefault(id(parameter), of_unit) != of_unit:
            owner[id(parameter)] = ""
        names.setdefault(id(parameter), name)
        by_id[id(parameter)] = parameter
    for key, parameter in by_id.items():
        units[owner[key]].parameters[names[key]] = parameter
    return [one for one in units.values() if one.parameters]


def split_by_bytes(units: Iterable[Unit], most_bytes: int) -> list[Unit]:
    """Divide units into smaller ones, of at most `most_bytes` bytes or of one parameter."""
    cut = []
    for unit in units:
        parts: list[dict[str, nn.Parameter]] = []
        room = 0
        for name, parameter in unit.parameters.items():
            nbytes = parameter.numel() * parameter.element_size()
            if not parts or nbytes > room:
                parts.append({})
                room = most_bytes
            parts[-1][name] = parameter
            room -= nbytes
        cut += [Unit(unit.name, unit.module, part) for part in parts]
    return cut


def alike(parameters: dict[str, nn.Parameter]) -> list[dict[str, nn.Parameter]]:
    """Group parameters by dtype and by whether they are trained.

    Matrices come before vectors. Optimizers often treat them differently, and parameters that are
    treated alike form one tensor of the optimizer if they are adjacent.
    """
    kinds: dict[tuple[torch.dtype, bool], dict[str, nn.Parameter]] = {}
    for name, parameter in sorted(parameters.items(), key=lambda item: item[1].dim() <= 1):
        kinds.setdefault((parameter.dtype, parameter.requires_grad), {})[name] = parameter
    return list(kinds.values())


def _as_tuple(unit: UnitSpec) -> tuple[type[nn.Module] | str, ...]:
    return (unit,) if isinstance(unit, (type, str)) else tuple(unit)


def _matching(model: nn.Module, wanted: tuple[type[nn.Module] | str, ...]) -> dict[str, nn.Module]:
    modules = dict(model.named_modules())
    del modules[""]
    found: dict[str, nn.Module] = {}
    for one in wanted:
        matched = {
            name: module
            for name, module in modules.items()
            if (_is_like(name, one) if isinstance(one, str) else isinstance(module, one))
        }
        if not matched:
            what = repr(one) if isinstance(one, str) else one.__qualname__
            classes = ", ".join(sorted({type(module).__qualname__ for module in modules.values()}))
            raise ValueError(
                f"unit={what} matches no module of {type(model).__qualname__}, which has "
                f"{', '.join(modules) or 'none'} (classes {classes or 'none'})"
            )
        found |= matched
    return {name: found[name] for name in modules if name in found}


def _is_like(name: str, pattern: str) -> bool:
    """Return whether a name matches a pattern part by part: "blocks.*" not "blocks.0.norm"."""
    parts, patterns = name.split("."), pattern.split(".")
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))


def _innermost(parameter: str, units: dict[str, Unit]) -> str:
    name = parameter.rpartition(".")[0]
    while name not in units:
        name = name.rpartition(".")[0]
    return name
