"""OverlappedStep: an optimizer's step that completes during the next forward pass.

step() returns immediately, while gradients are still being reduced. A parameter is updated when it
is next read, usually when its module needs it in the next forward pass. Communication therefore
overlaps with the next forward pass, not only with the backward pass. The updates are bitwise equal
to those of the plain loop.

Parameters are read through their modules. While updates are outstanding, a module's table of
parameters is replaced by one that applies them first. Every reader therefore sees the new values:
forward passes, state_dict(), parameters(), copies.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer
from torch.utils.hooks import RemovableHandle

from horoscale.common import job
from horoscale.torch.groups import GradientGroup
from horoscale.torch.reducer import GradientReducer

# PyTorch optimizers that update each parameter from its own gradient and state only.
SEPARABLE = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.RMSprop,
    torch.optim.Rprop,
    torch.optim.ASGD,
)

Options = list[dict[str, Any]]
Update = Callable[[Iterable[torch.Tensor | None]], None]


class OverlappedStep:
    """The outstanding updates of one optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer, reducer: GradientReducer) -> None:
        """Start with no outstanding updates."""
        self._weak_optimizer = weakref.ref(optimizer)
        self._busy_optimizer: Any = None  # keeps it alive while updates are outstanding
        self._reducer = reducer
        self._owners = Owners()
        self._outstanding: dict[int, GradientGroup] = {}  # by id of the parameter
        self._options: Options = []  # of the parameter groups at step()
        self._zero: bool | None = None  # the set_to_none of a zero_grad() call
        self._held: dict[int, torch.Tensor] = {}  # gradients hidden by zero_grad()
        self.applying = False
        _all.add(self)

    @property
    def outstanding(self) -> bool:
        """Whether parameters are waiting for their update."""
        return bool(self._outstanding)

    def has(self, group: GradientGroup) -> bool:
        """Return whether the group's parameters are waiting for their update."""
        return any(id(gradient.parameter) in self._outstanding for gradient in group.gradients)

    @property
    def possible(self) -> bool:
        """Whether the next step can overlap: all owner modules are known, and no hooks are set."""
        optimizer: Any = self._weak_optimizer()
        hooked = (
            optimizer._optimizer_step_pre_hooks
            or optimizer._optimizer_step_post_hooks
            or torch_optimizer._global_optimizer_pre_hooks
            or torch_optimizer._global_optimizer_post_hooks
        )
        shared = any(group.shared for group in self._reducer.groups)
        return not hooked and not shared and self._owners.complete(self._reducer.groups)

    def begin(self) -> None:
        """Start the reductions that the backward pass has not started, and guard the readers."""
        self._reducer.start()
        self._busy_optimizer = self._weak_optimizer()
        self._options = [_options(group) for group in self._busy_optimizer._plain_groups]
        for group in self._reducer.by_first_use:
            if group.in_flight:
                self._reducer.warn_of_change(group)  # now, because its memory may be reused
                for gradient in group.gradients:
                    self._outstanding[id(gradient.parameter)] = group
        job.current_runtime().notify()  # because no thread is waiting
        self._owners.guard(self._outstanding, self.apply_to)

    def zero_grad(self, set_to_none: bool) -> None:
        """Hide the gradients that are still needed. They are cleared after use."""
        self._zero = set_to_none
        for group in self._outstanding.values():
            for gradient in group.gradients:
                parameter = gradient.parameter
                if parameter.grad is not None:
                    self._held[id(parameter)] = parameter.grad
                    parameter.grad = None

    def apply_to(self, parameters: Iterable[torch.Tensor | None]) -> None:
        """Update parameters that are about to be read.

        Also update other parameters whose gradients are ready: one large update is cheaper than
        many small ones. Raises the error of a failed reduction.
        """
        if self.applying or not self._outstanding:
            return
        wanted = {id(one) for one in parameters if one is not None}
        if wanted.isdisjoint(self._outstanding):
            return
        groups = {}
        others_are_there = True
        for key, group in self._outstanding.items():  # in the order of their next use
            others_are_there = others_are_there and (key in wanted or group.done())
            if key in wanted or others_are_there:
                groups[id(group)] = group
        self._apply(list(groups.values()))

    def finish(self) -> None:
        """Update all parameters. Raises the error of a failed reduction."""
        if self._outstanding and not self.applying:
            self._apply(list({id(g): g for g in self._outstanding.values()}.values()))

    def _apply(self, groups: list[GradientGroup]) -> None:
        self.applying = True  # the optimizer reads parameters, too
        try:
            with torch.no_grad():
                for group in groups:
                    self._finish(group)
                self._step(groups)
        except BaseException:
            self.abandon()
            raise
        finally:
            self.applying = False
        for group in groups:
            group.use(self._reducer)
            for gradient in group.gradients:
                self._outstanding.pop(id(gradient.parameter), None)
        if self._zero is not None:
            self._clear(groups, set_to_none=self._zero)
        self._settle()

    def _settle(self) -> None:
        self._owners.release(self._outstanding)
        if not self._outstanding:
            self._zero = None
            self._busy_optimizer = None

    def _finish(self, group: GradientGroup) -> None:
        for gradient in group.gradients:
            held = self._held.pop(id(gradient.parameter), None)
            if held is not None:
                gradient.parameter.grad = held
        group.finish()

    def _step(self, groups: list[GradientGroup]) -> None:
        """Run the optimizer's step as if it only had the parameters of these groups."""
        optimizer = self._busy_optimizer
        chosen = {id(gradient.parameter) for group in groups for gradient in group.gradients}
        everything = optimizer._plain_groups
        optimizer.param_groups = [
            {**options, "params": [one for one in group["params"] if id(one) in chosen]}
            for options, group in zip(self._options, everything, strict=False)
        ]
        try:
            optimizer._plain_class.step(optimizer)
        finally:
            optimizer.param_groups = everything

    def _clear(self, groups: list[GradientGroup], set_to_none: bool) -> None:
        for group in groups:
            for gradient in group.gradients:
                parameter = gradient.parameter
                if set_to_none:
                    parameter.grad = None
                elif parameter.grad is not None:
                    parameter.grad.zero_()

    def abandon(self) -> None:
        """Drop outstanding updates, because a reduction or the job failed."""
        self._outstanding.clear()
        self._held.clear()
        self._settle()


class Owners:
    """The modules through which an optimizer's parameters are read."""

    def __init__(self) -> None:
        """Create an empty table."""
        self._searched = 0  # number of parameters
        self._complete = False  # every parameter has an owner
        self._modules: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._guarded: list[tuple[weakref.ref[torch.nn.Module], RemovableHandle | None]] = []

    def complete(self, groups: Iterable[GradientGroup]) -> bool:
        """Return whether every parameter has an owner that is not part of a compiled module."""
        parameters = {id(gradient.parameter) for group in groups for gradient in group.gradients}
        if len(parameters) != self._searched:
            self._search(parameters)
            self._searched = len(parameters)
        return self._complete

    def guard(self, outstanding: dict[int, GradientGroup], update: Update) -> None:
        """Call `update` before an outstanding parameter is read through its module."""
        for module in self._modules:
            table = module.__dict__["_parameters"]
            if type(table) is not dict or not any(id(one) in outstanding for one in table.values()):
                continue
            hook = None
            if isinstance(module, torch.nn.RNNBase):
                # The module has a list of its parameters in addition to the table.
                hook = module.register_forward_pre_hook(
                    lambda module, inputs: update(module.__dict__["_parameters"].values())
                )
            module.__dict__["_parameters"] = _Guard(table, update)
            self._guarded.append((weakref.ref(module), hook))

    def release(self, outstanding: dict[int, GradientGroup]) -> None:
        """Remove the guard from modules without outstanding parameters."""
        still = []
        for reference, hook in self._guarded:
            module = reference()
            if module is None:
                continue
            table = module.__dict__["_parameters"].plain
            if any(id(one) in outstanding for one in table.values()):
                still.append((reference, hook))
                continue
            module.__dict__["_parameters"] = table
            if hook is not None:
                hook.remove()
        self._guarded = still

    def _search(self, parameters: set[int]) -> None:
        """Search all modules of this process: a parameter has no reference to its module."""
        modules = [one for one in gc.get_objects() if issubclass(type(one), torch.nn.Module)]
        owned: set[int] = set()
        for module in modules:
            table = module.__dict__.get("_parameters") or {}  # it may not be initialized yet
            own = {id(one) for one in table.values()} & parameters
            if own:
                self._modules.add(module)
                owned |= own
        # A compiled module may read parameters directly.
        compiled = any(
            part in self._modules
            for module in filter(_is_compiled, modules)
            for part in module.modules()
        )
        self._complete = owned == parameters and not compiled


def _is_compiled(module: torch.nn.Module) -> bool:
    state = module.__dict__
    return state.get("_compiled_call_impl") is not None or "_orig_mod" in state.get("_modules", ())


class _Guard(dict[str, Any]):
    """A module's table of parameters while some updates are outstanding."""

    def __init__(self, plain: dict[str, Any], update: Update) -> None:
        super().__init__(plain)
        self.plain = plain
        self._update = update

    def _current(self) -> dict[str, Any]:
        self._update(self.plain.values())
        return self.plain

    def __getitem__(self, name: str) -> Any:
        return self._current()[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._current()[name] = value
        super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        del self._current()[name]
        super().__delitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        return self._current().get(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        super().pop(name, None)
        return self._current().pop(name, *default)

    def items(self) -> Any:
        return self._current().items()

    def values(self) -> Any:
        return self._current().values()

    def copy(self) -> dict[str, Any]:
        return self._current().copy()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (self._current().copy(),)


def _options(group: dict[str, Any]) -> dict[str, Any]:
    """Copy a parameter group's options, which a scheduler may change before they are used."""
    return {
        name: value.clone() if isinstance(value, torch.Tensor) else value
        for name, value in group.items()
        if name != "params"
    }


def _finish_all() -> None:
    for overlap in list(_all):
        overlap.finish()


def _abandon_all() -> None:
    for overlap in list(_all):
        overlap.abandon()


_all: weakref.WeakSet[OverlappedStep] = weakref.WeakSet()
job.before_end(_finish_all)
job.at_end(_abandon_all)
