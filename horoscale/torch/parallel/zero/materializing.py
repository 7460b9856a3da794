"""Allocates and initializes models on the device "meta" unit by unit while they are sharded."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from horoscale.torch.parallel.mesh import Axis
from horoscale.torch.parallel.zero.agreement import checksum, need_same_values
from horoscale.torch.parallel.zero.units import Unit

Initialize = Callable[[nn.Module], None]


class Materialized:
    """A model whose parameters and buffers were moved from the device "meta", without values yet.

    Their memory is only reserved. The system allocates it when values are written, and gets it back
    when the unit has been moved into its shards.
    """

    def __init__(self, model: nn.Module, initialize: Initialize | None) -> None:
        """Replace tensors on "meta"; tied parameters remain tied.

        Raises ValueError if a module can't be initialized.
        """
        modules = {name: one for name, one in model.named_modules() if _has_meta(one)}
        for name, module in modules.items():
            if initialize is None and not hasattr(module, "reset_parameters"):
                raise ValueError(
                    f"{name or 'the model'}, a {type(module).__qualname__}, is on the device "
                    '"meta" and has no reset_parameters(): say how it gets its values, by '
                    "initialize="
                )
        self._initialize = initialize or _reset
        self._modules = list(modules.values())
        self._rest = {id(one) for one in self._modules}
        self._checksums: dict[str, int] = {}
        made: dict[int, nn.Parameter] = {}
        for module in self._modules:
            for name, old in module._parameters.items():
                if old is not None and old.is_meta:
                    if id(old) not in made:
                        made[id(old)] = nn.Parameter(
                            torch.empty_like(old, device="cpu"), old.requires_grad
                        )
                    module._parameters[name] = made[id(old)]
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer.is_meta:
                    module._buffers[name] = torch.empty_like(buffer, device="cpu")
        self._without: set[int] = {id(one) for one in made.values()}  # not initialized yet

    @property
    def is_empty(self) -> bool:
        """Whether nothing was on "meta"."""
        return not self._modules

    def give_buffers(self) -> None:
        """Initialize modules that have no parameters."""
        self._give([one for one in self._modules if not _own_parameters(one)])

    def give(self, unit: Unit) -> None:
        """Initialize a unit's parameters, and the buffers of the same modules."""
        if self.is_empty:
            return
        of_unit = {id(one) for one in unit.parameters.values()}
        self._give(
            [
                module
                for module in unit.module.modules()
                if of_unit & self._without & _own_parameters(module)
            ]
        )
        for name, parameter in unit.parameters.items():
            self._checksums[name] = checksum(parameter)

    def need_same_values(self, axis: Axis) -> None:
        """Compare the values among the ranks. Collective; raise MismatchError if they differ."""
        if not self.is_empty:
            need_same_values(axis, self._checksums)

    @torch.no_grad()
    def _give(self, modules: list[nn.Module]) -> None:
        for module in modules:
            own = _own_parameters(module)
            if id(module) in self._rest and (not own or own & self._without):
                self._rest.discard(id(module))
                self._initialize(module)
                self._without -= own


def _has_meta(module: nn.Module) -> bool:
    own = (*module._parameters.values(), *module._buffers.values())
    return any(one is not None and one.is_meta for one in own)


def _own_parameters(module: nn.Module) -> set[int]:
    """Return the ids of a module's own parameters, skipping those that are None."""
    return {id(one) for one in module._parameters.values() if one is not None}


def _reset(module: nn.Module) -> None:
    reset = module.reset_parameters
    assert callable(reset)
    reset()
