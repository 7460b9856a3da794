"""Inputs that several column-parallel layers share, in modules that are not aware of ranks.

The input's gradient is summed once for all of these layers, and a divided sequence is gathered
once.
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
    """Make the divided layers of a module share the work for their input.

    Args:
        name: the name of the module.
        module: a module whose children are divided by columns.
        argument: the name of its input, for calls without positional arguments.
        axis: the ranks.
        dim: the dimension along which the input is divided. None: each rank has all of it.
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
    """Apply a function to a module's first argument, or to a keyword argument."""

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = args[0] if args else kwargs.get(argument)
        if not torch.is_tensor(x):
            raise ValueError(
                f"{name} needs a tensor as its first argument or as {argument!r}, but was called "
                f"with {len(args)} positional arguments and {', '.join(kwargs) or 'no others'}"
            )
        changed = change(x)
        return ((changed, *args[1:]), kwargs) if args else (args, {**kwargs, argument: changed})

    module.register_forward_pre_hook(hook, with_kwargs=True)


class _SharedCopies:
    """copy_to() of the input of several layers, done once in each call of their module.

    Other uses of the input in the module, such as a residual or a router, get the original.
    """

    def __init__(self, axis: Axis) -> None:
        self._axis = axis
        self._is_within = False
        self._copies: dict[tuple[int, bool], tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if not self._is_within:  # a layer that is called from outside its module
            return copy_to(x, self._axis)
        key = id(x), torch.is_grad_enabled()
        if key not in self._copies:
            self._copies[key] = (
                x,
                copy_to(x, self._axis),
            )  # keeps x, so that no other tensor gets its id
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
