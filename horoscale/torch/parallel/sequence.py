"""Sequence parallelism of ordinary modules, by hooks on them and their parameters.

Inside a chain of modules that run one after the other, each rank has a part of the sequence
(Korthikanti et al. 2022). The gradients of replicated parameters are then those of the rank's part.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import nn

from horoscale._core import ReduceOp
from horoscale.common.process_sets import ProcessSet
from horoscale.torch.parallel import rng
from horoscale.torch.parallel.inputs import on_input
from horoscale.torch.parallel.mesh import Axis
from horoscale.torch.parallel.regions import gather_from, scatter_to
from horoscale.torch.reductions import allreduce

Modules = dict[str, nn.Module]


def check_chain(model: nn.Module, chain: Modules, divided: Collection[nn.Module]) -> None:
    """Raise ValueError if the sequence can't be divided between these modules.

    Args:
        model: the model to which they belong.
        chain: the modules by name, in the order in which they run.
        divided: the layers of the model that are divided by columns or rows.
    """
    for end in (next(iter(chain)), next(reversed(chain))):
        for name, module in chain.items():
            if module is chain[end] and name != end:
                raise ValueError(
                    f"plan: {end} is also {name}: the modules where the sequence is divided and "
                    f"where it is joined again must run only once"
                )
    inside = modules_within(chain)
    for name, module in inside.items():
        kind = type(module).__name__
        if any(name.startswith(f"{one}.") for one in chain) and name in chain:
            raise ValueError(f"plan: {name} is inside another module that divides the sequence")
        if "attention" in kind.lower() and not any(one in divided for one in module.modules()):
            raise ValueError(
                f"plan: {name} is a {kind}, which needs the whole sequence. To divide the "
                f"sequence, divide its layers, too"
            )
        if isinstance(module, nn.modules.dropout._DropoutNd) and type(module) is not nn.Dropout:
            raise ValueError(
                f"plan: {name} is a {kind}; for a divided sequence only Dropout is supported"
            )
    own = {id(one): name for name, one in _parameters(inside).items()}
    everywhere = dict(model.named_modules(remove_duplicate=False))
    outside = {name: one for name, one in everywhere.items() if name not in inside}
    for name, parameter in _parameters(outside).items():
        if id(parameter) in own:
            raise ValueError(
                f"plan: {own[id(parameter)]} is also {name}, where the sequence is not divided"
            )


def modules_within(chain: Modules) -> Modules:
    """Return the modules of a chain and all that they contain, by each of their names."""
    return {
        f"{name}.{inner}" if inner else name: module
        for name, of_chain in chain.items()
        for inner, module in of_chain.named_modules(remove_duplicate=False)
    }


def divide_sequence(chain: Modules, axis: Axis, dim: int, argument: str) -> None:
    """Make the modules of a chain with divided layers work on parts of the sequence.

    Args:
        chain: the modules by name, in the order in which they run.
        axis: the ranks that share a sequence.
        dim: the sequence dimension.
        argument: the name of the first module's input, for calls without positional arguments.
    """
    first, last = next(iter(chain)), next(reversed(chain))
    on_input(first, chain[first], argument, lambda x: scatter_to(x, axis, dim))

    def leave(_: nn.Module, __: Any, output: Any) -> Any:
        if isinstance(output, tuple) and output and torch.is_tensor(output[0]):
            return (gather_from(output[0], axis, dim), *output[1:])
        if not torch.is_tensor(output):
            raise ValueError(
                f"{last} returns {type(output).__name__}, not a tensor whose sequence could be "
                f"joined"
            )
        return gather_from(output, axis, dim)

    chain[last].register_forward_hook(leave)
    inside = dict.fromkeys(modules_within(chain).values())
    own: dict[nn.Module, nn.Module] = {}
    for module in inside:
        for name, child in module._modules.items():  # named_children() has each child once
            if type(child) is nn.Dropout:
                setattr(module, name, own.setdefault(child, _OwnDropout(child, axis)))
    for module in inside:
        if not hasattr(module, "shards"):
            _add_up_gradients(module, axis)


class _OwnDropout(nn.Dropout):
    """A dropout whose random numbers differ along an axis."""

    def __init__(self, whole: nn.Dropout, axis: Axis) -> None:
        super().__init__(whole.p, whole.inplace)
        self.train(whole.training)
        self.axis = axis

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self.training or not self.p:
            return input
        with rng.fork(self.axis):
            return super().forward(input)


def _parameters(modules: Modules) -> dict[str, nn.Parameter]:
    """Return the undivided parameters of the modules themselves, by name."""
    return {
        f"{name}.{own_name}".lstrip("."): parameter
        for name, module in modules.items()
        if not hasattr(module, "shards")
        for own_name, parameter in module.named_parameters(recurse=False)
    }


class _Sum:
    """Sums a gradient of which each rank has its own part."""

    def __init__(self, process_set: ProcessSet) -> None:
        self._process_set = process_set

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        return allreduce(gradient, op=ReduceOp.SUM, process_set=self._process_set)


def _add_up_gradients(module: nn.Module, axis: Axis) -> None:
    """Sum the gradients of a module's own parameters over the ranks.

    This includes parameters that it gets later: to_empty(), for example, creates new ones without
    hooks.
    """
    process_set = axis.set
    if process_set is None or not module._parameters:
        return
    add_up = _Sum(process_set)

    def hook(module: nn.Module, _: Any) -> None:
        for parameter in module.parameters(recurse=False):
            known = parameter._backward_hooks or {}
            if not any(isinstance(one, _Sum) for one in known.values()):
                is_trained = parameter.requires_grad
                parameter.requires_grad_(True)  # hooks require it; it may be unfrozen later
                parameter.register_hook(add_up)  # type: ignore[no-untyped-call]
                parameter.requires_grad_(is_trained)

    hook(module, ())
    module.register_forward_pre_hook(hook)
