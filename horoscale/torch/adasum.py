"""DistributedOptimizer with op=Adasum: combine the ranks' updates instead of their gradients."""

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
    """The class that DistributedOptimizer(op=Adasum) inserts before the optimizer's own.

    Each rank runs the optimizer's step with its local gradients. Adasum reduces the resulting
    updates of the parameters, and each parameter becomes its old value plus the combined update.
    """

    _plain_class: type[torch.optim.Optimizer]
    _process_set: ProcessSet
    _sparse_as_dense: bool
    _passes: int

    @outside_graph
    def step(self, closure: Closure | None = None) -> Any:
        """Run the optimizer's step on this rank, then combine the ranks' updates by Adasum.

        Collective over the process set. All of its ranks must have the same parameters in the same
        order.

        Args:
            closure: recomputes the loss, as for the wrapped optimizer; called on this rank only.

        Returns:
            The result of the wrapped optimizer's step().

        Raises:
            HorovodInternalError: the reduction failed. The parameters keep their old values.
        """
        return _combined_step(self, super().step, closure)

    # Without this mark, PyTorch would run the step hooks twice: around this step() and around the
    # wrapped one.
    step.hooked = True  # type: ignore[attr-defined]

    def synchronize(self) -> None:
        """Do nothing: gradients stay local, and step() reduces the updates."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Raise AssertionError: without the reduction, parameters would diverge between ranks."""
        raise AssertionError("skip_synchronize() is not possible with op=Adasum")
        yield

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Do nothing: backward passes accumulate local gradients in any case."""
        yield

    def finish_step(self) -> None:
        """Do nothing: step() completes all work."""

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Set the number of backward passes before a step. Raises ValueError if it is below 1."""
        if passes < 1:
            raise ValueError(
                f"backward_passes_per_step={passes}: at least one pass precedes a step"
            )
        self._passes = passes

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A copy is a plain optimizer of the user's class, which can be wrapped again.
        return object.__new__, (self._plain_class,), self.__getstate__()


def _combined_step(optimizer: AdasumStep, step: Callable[..., Any], closure: Closure | None) -> Any:
    """Run `step`, the optimizer's plain step, and reduce the resulting updates."""
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
    """Change the optimizer's class, so that step() combines the ranks' updates by Adasum."""
    if process_set.process_set_id is None or process_set.included() is not False:
        set_id(process_set)  # raises if it is not usable here; ranks outside it train alone
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
        # A scheduler has already replaced step() on the instance, which hides the class' step().
        @functools.wraps(patched_step)
        def step(closure: Closure | None = None) -> Any:
            return _combined_step(optimizer, patched_step, closure)

        optimizer.step = step  # type: ignore[method-assign]
    return optimizer
