"""Gathering: parameters that a rank holds only while it computes with them (stage 3).

For ranks that do not share memory. A unit's parameters are gathered before its forward pass and
freed after it; likewise for its backward pass. Freeing releases the memory of their storage, so
that views saved by autograd become valid again when they are gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.hooks import RemovableHandle

from horoscale.torch.parallel.zero.flat import FlatShards


class _Boundary(torch.autograd.Function):
    """Passes the inputs of a unit on. When their gradients arrive, the unit is done."""

    @staticmethod
    def forward(context: Any, done: Any, *inputs: torch.Tensor) -> Any:
        context.done = done
        return tuple(one.view_as(one) for one in inputs)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        context.done()
        return None, *gradients


class Gathering:
    """The units of a model, whose parameters are gathered and freed."""

    def __init__(
        self, model: nn.Module, units: Sequence[tuple[nn.Module, list[FlatShards]]], prefetch: int
    ) -> None:
        """Install hooks on the forward and backward passes of the units' modules.

        Args:
            model: the model. If it is a unit itself, that one is kept until the backward pass.
            units: modules and their shards.
            prefetch: how many units to gather ahead while one computes.

        Raises ValueError if parameters belong to a module that is never called itself.
        """
        self._units = [shards for _, shards in units]
        self._root = next((i for i, (module, _) in enumerate(units) if module is model), None)
        self._prefetch = prefetch
        self._order: list[int] = []  # order of the units in the last forward pass
        self._place = 0  # position in it
        self._awaits_end = False  # whether a callback waits for the end of a backward pass
        self._hooks: list[RemovableHandle] = []
        for module, shards in units:
            if shards and not _has_forward(module):
                raise ValueError(
                    f"{shards[0].places[0].name} is in no unit, but the "
                    f"{type(module).__qualname__} around it has no forward pass to gather it for: "
                    "choose unit= so that it is in one"
                )
        for number, (module, _) in enumerate(units):
            self._follow(number, module)
        if self._root is None:  # not a unit: the hook only detects the start of a forward pass
            for module in called(model):
                self._hooks.append(module.register_forward_pre_hook(self._begin, prepend=True))

    def gather_all(self) -> None:
        """Gather the parameters of all units, until their next forward pass. Collective."""
        for shards in self._units:
            for one in shards:
                one.gather()

    def free_all(self) -> None:
        """Free the parameters of all units."""
        for number in range(len(self._units)):
            self._free(number)

    def remove(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def _begin(self, *_: object) -> None:
        if not _in_backward():
            self._place = 0

    def _follow(self, number: int, module: nn.Module) -> None:
        before = module.register_forward_pre_hook(
            lambda _, args, kwargs: self._before_forward(number, args, kwargs),
            with_kwargs=True,
            prepend=True,
        )
        after = module.register_forward_hook(
            lambda _, __, output: self._after_forward(number, output), always_call=False
        )
        self._hooks += [before, after]

    def _before_forward(self, number: int, args: Any, kwargs: Any) -> Any:
        self._gather(number)
        if _in_backward():  # activations are being recomputed
            self._await_end()
            return None
        self._awaits_end = False  # still set if the last backward pass failed
        self._prefetch_forward(number)
        if not torch.is_grad_enabled():
            return None
        values, structure = tree_flatten((args, kwargs))
        followed = [one for one in values if isinstance(one, torch.Tensor) and one.requires_grad]
        if number == self._root or not followed:
            return None  # freed at the end of the backward pass
        bounded = iter(_Boundary.apply(lambda: self._free(number), *followed))  # type: ignore[no-untyped-call]
        values = [
            next(bounded) if isinstance(one, torch.Tensor) and one.requires_grad else one
            for one in values
        ]
        return tree_unflatten(values, structure)

    def _after_forward(self, number: int, output: Any) -> None:
        if _in_backward():
            return
        outputs = [
            one
            for one in tree_flatten(output)[0]
            if isinstance(one, torch.Tensor) and one.requires_grad
        ]
        for one in outputs:
            one.register_hook(lambda _: self._before_backward(number))  # type: ignore[no-untyped-call]
        if number != self._root:
            self._free(number)
        elif not outputs:
            self.free_all()

    def _before_backward(self, number: int) -> None:
        self._await_end()
        self._gather(number)
        self._prefetch_backward(number)

    def _await_end(self) -> None:
        """Free the rest at the end of this backward pass, but not of passes nested in it."""
        if not self._awaits_end:
            self._awaits_end = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def _end(self) -> None:
        self._awaits_end = False
        self.free_all()

    def _prefetch_forward(self, number: int) -> None:
        """Start to gather the units that came next in the last forward pass."""
        if number == self._root:
            self._place = 0
            return
        if self._place < len(self._order) and self._order[self._place] == number:
            self._place += 1
        else:  # the first pass, or a different order
            del self._order[self._place :]
            self._order.append(number)
            self._place += 1
        for following in self._order[self._place : self._place + self._prefetch]:
            self._start(following)

    def _prefetch_backward(self, number: int) -> None:
        """Start to gather the units that precede this one in the forward pass."""
        if number not in self._order:
            return
        place = self._order.index(number)
        for previous in self._order[max(place - self._prefetch, 0) : place]:
            self._start(previous)

    def _start(self, number: int) -> None:
        for one in self._units[number]:
            one.start_gather()

    def _gather(self, number: int) -> None:
        for one in self._units[number]:
            one.gather()

    def _free(self, number: int) -> None:
        for one in self._units[number]:
            one.free()


def _in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)


def called(model: nn.Module) -> list[nn.Module]:
    """Return the modules with which a forward pass begins: the model, or a pipeline's stages."""
    return [model] if _has_forward(model) else list(model.children())


def _has_forward(module: nn.Module) -> bool:
    return getattr(module.forward, "__func__", module.forward) is not nn.Module.forward
