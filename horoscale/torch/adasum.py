"""DistributedOptimizer with op=Adasum: steps are reduced instead of gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from horoscale.common import Adasum
from horoscale.common.arguments import set_id
from horoscale.common.process_sets import ProcessSet
from horoscale.torch.compiling import outside_graph
from horoscale.torch.reductions import grouped_allreduce_

Closure = Callable[[], Any]


class AdasumStep(torch.optim.Optimizer):
    """What DistributedOptimizer(op=Adasum) puts before the class of the user's optimizer.

    Each rank does the optimizer's step with its own gradients. What that changes each parameter by
    is reduced by Adasum, and added to what the parameter was before.
    """

    _plain_class: type[torch.optim.Optimizer]
    _process_set: ProcessSet
    _sparse_as_dense: bool
    _passes: int

    @outside_graph
    def step(self, closure: Closure | None = None) -> Any:
        """Do the optimizer's step on this rank, and make the ranks' steps one by Adasum.

        Collective over the process set: all of its ranks have the same parameters, in one order.

        Args:
            closure: computes the loss anew, as for the optimizer itself, on this rank alone.

        Returns:
            What the optimizer's step() returns.

        Raises:
            HorovodInternalError: the reduction failed; the parameters are as they were.
        """
        return _combined_step(self, super().step, closure)

    # PyTorch puts its own hooks around a step() that does not say that it has them; the step of the
    # user's class, which this one calls, has them.
    step.hooked = True  # type: ignore[attr-defined]

    def synchronize(self) -> None:
        """Do nothing: gradients stay this rank's own, and step() reduces what it changes."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Raise AssertionError: a step that is not reduced leaves the ranks with other weights."""
        raise AssertionError("skip_synchronize() is not possible with op=Adasum")
        yield

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients on this rank, as backward passes do without it."""
        yield

    def finish_step(self) -> None:
        """Do nothing: step() leaves nothing for later."""

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change how many backward passes precede a step. Raises ValueError if that is below 1."""
        if passes < 1:
            raise ValueError(
                f"backward_passes_per_step={passes}: at least one pass precedes a step"
            )
        self._passes = passes

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A copy is an optimizer of the user's class, to be wrapped again.
        return object.__new__, (self._plain_class,), self.__getstate__()


def _combined_step(optimizer: AdasumStep, step: Callable[..., Any], closure: Closure | None) -> Any:
    """Do `step`, the plain step of an optimizer, and reduce what it changes."""
    do_step = step if closure is None else functools.partial(step, closure)
    if not optimizer._process_set.included():
        return do_step()
    trained = [
        one for group in optimizer.param_groups for one in group["params"] if one.requires_grad
    ]
    if optimizer._sparse_as_dense:
        for parameter in trained:
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()
    with torch.no_grad():
        before = [parameter.detach().clone() for parameter in trained]
    result = do_step()
    if not trained:
        return result
    with torch.no_grad():
        steps = [parameter.detach() for parameter in trained]
        torch._foreach_sub_(steps, before)
        name = f"adasum.{optimizer._plain_class.__name__}.{len(steps)}"
        try:
            grouped_allreduce_(steps, op=Adasum, name=name, process_set=optimizer._process_set)
        except BaseException:
            torch._foreach_copy_(steps, before)
            raise
        torch._foreach_add_(steps, before)
    return result


def distribute_steps(
    optimizer: torch.optim.Optimizer,
    backward_passes_per_step: int,
    process_set: ProcessSet,
    sparse_as_dense: bool,
) -> AdasumStep:
    """Change the class of an optimizer, and have its step combine the ranks' steps by Adasum."""
    if process_set.process_set_id is None or process_set.included() is not False:
        set_id(process_set)  # raises where it can't be used; ranks outside train on their own
    plain_class = optimizer.__class__
    optimizer.__class__ = type(
        plain_class.__name__,
        (AdasumStep, plain_class),
        {"_plain_class": plain_class, "__module__": plain_class.__module__},
    )
    assert isinstance(optimizer, AdasumStep)
    optimizer._process_set = process_set
    optimizer._sparse_as_dense = sparse_as_dense
    optimizer._passes = backward_passes_per_step
    patched_step = optimizer.__dict__.get("step")
    if patched_step is not None:
        # A scheduler made earlier has put its own function, which calls the plain step, in the way.
        @functools.wraps(patched_step)
        def step(closure: Closure | None = None) -> Any:
            return _combined_step(optimizer, patched_step, closure)

        optimizer.step = step  # type: ignore[method-assign]
    return optimizer
