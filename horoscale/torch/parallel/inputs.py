"""Inputs that several column-parallel layers multiply, of modules that know nothing of ranks.

Their gradient is added up once for all of these layers, and a part of a sequence is gathered once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from horoscale.torch.parallel.linear import ColumnParallelLinear
from horoscale.torch.parallel.mesh import Axis
from horoscale.torch.parallel.regions import copy_to, sequence_gather

Change = Callable[[torch.Tensor], torch.Tensor]


def take_input(name: str, module: nn.Module, argument: str, axis: Axis, dim: int | None) -> None:
    """Have the divided layers of a module share the work for their input.

    Args:
        name: of the module.
        module: whose children are layers divided by columns.
        argument: the name of its input, where it is called without positional ones.
        axis: the ranks.
        dim: each rank has a part of the input along it; None: all of it.
    """
    layers = [one for one in module.children() if isinstance(one, ColumnParallelLinear)]
    if dim is None:
        _share_copies(module, layers, axis)
        return
    # Before the module looks at its shape.
    on_input(name, module, argument, lambda x: sequence_gather(x, axis, dim))
    for layer in layers:
        layer.input_of_several = _as_it_is


def on_input(name: str, module: nn.Module, argument: str, change: Change) -> None:
    """Have something done to a module's first argument, or to a keyword argument."""

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = args[0] if args else kwargs.get(argument)
        if not torch.is_tensor(x):
            raise ValueError(
                f"{name} is called with neither a tensor first nor a tensor {argument!r}, but with "
                f"{len(args)} positional arguments and {', '.join(kwargs) or 'no others'}"
            )
        changed = change(x)
        return ((changed, *args[1:]), kwargs) if args else (args, {**kwargs, argument: changed})

    module.register_forward_pre_hook(hook, with_kwargs=True)


class _SharedCopies:
    """copy_to() of each input of several layers, done once within a call of their module.

    What else the module does with its input, such as a residual or a router, has it as it is.
    """

    def __init__(self, axis: Axis) -> None:
        self._axis = axis
        self._is_within = False
        self._copies: dict[tuple[int, bool], tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if not self._is_within:  # a layer that is called by somebody else
            return copy_to(x, self._axis)
        key = id(x), torch.is_grad_enabled()
        if key not in self._copies:
            self._copies[key] = x, copy_to(x, self._axis)  # x stays, so that no other has its id
        return self._copies[key][1]

    def begin(self, *_: object) -> None:
        self._is_within = True

    def end(self, *_: object) -> None:
        self._is_within = False
        self._copies.clear()


def _share_copies(module: nn.Module, layers: Iterable[ColumnParallelLinear], axis: Axis) -> None:
    copies = _SharedCopies(axis)
    for layer in layers:
        layer.input_of_several = copies
    module.register_forward_pre_hook(copies.begin)
    module.register_forward_hook(copies.end, always_call=True)


def _as_it_is(x: torch.Tensor) -> torch.Tensor:
    return x
