"""Local SGD: ranks take some steps on their own, then average how far their parameters have come.

A round is `sync_every` steps. Its anchor is a copy of the parameters, which at the beginning of a
round are the same on all ranks. At its end, the change since then (anchor minus parameters) is
averaged over the ranks and subtracted from the anchor, which is the average of the ranks'
parameters (Stich, "Local SGD Converges Fast and Communicates Little", 2019). Or it is the gradient
with which an outer optimizer takes a step on the anchor (Douillard et al., "DiLoCo: Distributed
Low-Communication Training of Language Models", 2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from horoscale.torch.compiling import outside_graph
from horoscale.torch.insertion import Step, insert_class
from horoscale.torch.options import check_passes
from horoscale.torch.residuals import RESIDUALS, Residuals
from horoscale.torch.training_rounds import MakeOuter, TrainingRounds, Travel

__all__ = ["LocalOptimizer", "MakeOuter", "Travel", "train_locally"]

Closure = Callable[[], Any]

_LOCAL = "horoscale_local_sgd"  # in a state_dict


class LocalOptimizer(torch.optim.Optimizer):
    """What DistributedOptimizer(sync_every=...) puts before the class of the user's optimizer."""

    _plain_class: type[torch.optim.Optimizer]
    _rounds: TrainingRounds

    # GradScaler then calls step() also where it finds that a step is to be skipped, so that each
    # rank counts it: see _scaled_step().
    _step_supports_amp_scaling = True

    @outside_graph
    def step(self, closure: Closure | None = None) -> Any:
        """Do the optimizer's step with this rank's gradients; end the round if it was its last.

        Collective in each `sync_every`-th call, however many steps GradScaler has skipped.

        Args:
            closure: computes the loss anew, as for the optimizer itself.

        Returns:
            What the optimizer's step() returns; None for a step that GradScaler skips.

        Raises:
            HorovodInternalError: the synchronization failed. The local step was done, and the
                parameters are this rank's own; the next step() synchronizes.
        """
        return _local_step(self, super().step, closure)

    step.hooked = True  # type: ignore[attr-defined] # the plain step has the hooks

    @outside_graph
    def synchronize_parameters(self) -> None:
        """End the round now, for example at the end of an epoch. Collective.

        The ranks may have taken different numbers of steps; a rank without any contributes no
        change. Does nothing if no rank has taken a step since the last synchronization, and on
        ranks outside of the process set. Raises HorovodInternalError if it failed.
        """
        self._rounds.synchronize()

    @property
    def local_steps(self) -> int:
        """The number of calls of step() since the last synchronization."""
        return self._rounds.steps

    @property
    def outer_optimizer(self) -> torch.optim.Optimizer | None:
        """The outer optimizer, for example to schedule its learning rate; None without one."""
        return self._rounds.outer

    def synchronize(self) -> None:
        """Do nothing: gradients are this rank's own, and can be clipped before step()."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Change nothing: step() counts within it, too."""
        yield

    def no_sync(self) -> Any:
        """Return a context in which backward passes add up gradients, as outside of it."""
        return nullcontext()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change nothing but check the number: all passes before a step add up."""
        check_passes(passes)

    def set_loss_scale(self, scale: float) -> None:
        """Change nothing but check the number: changes of parameters are not scaled."""
        if not (math.isfinite(scale) and scale > 0):
            raise ValueError(f"set_loss_scale({scale!r}): expected a positive, finite number")

    def set_local_scale(self, scale: float) -> None:
        """Multiply this rank's changes by a number before they are averaged, from now on.

        With its share's weight the average over the ranks is weighted by their numbers of samples
        (see hvd.elastic.DataPlan). Raises ValueError for what is not finite.
        """
        if not math.isfinite(scale):
            raise ValueError(f"set_local_scale({scale!r}): expected a finite number")
        self._rounds.scale = float(scale)

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state, with the round's: steps, anchor, and the outer state.

        Within a round the parameters, and therefore checkpoints, differ between ranks.
        """
        state = super().state_dict()
        state[_LOCAL] = self._rounds.save()
        residuals = self._residuals().save()
        if residuals is not None:
            state[RESIDUALS] = residuals
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the optimizer's state; that of a plain optimizer begins a round.

        Raises ValueError if the outer optimizer's groups of parameters differ.
        """
        super().load_state_dict(state_dict)
        self._rounds.load(state_dict.get(_LOCAL))
        if self._residuals().are_kept:
            self._residuals().load(state_dict.get(RESIDUALS))

    def _residuals(self) -> Residuals:
        travel = self._rounds.travel
        return Residuals(travel.selection, travel.process_set)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A copy (copy.deepcopy, pickle) is an optimizer of the user's class, to be wrapped again.
        return object.__new__, (self._plain_class,), self.__getstate__()


def train_locally(
    optimizer: torch.optim.Optimizer,
    travel: Travel,
    names: dict[torch.Tensor, str],
    sync_every: int,
    make_outer: MakeOuter | None,
) -> LocalOptimizer:
    """Change the class of an optimizer, and have it synchronize in each `sync_every`-th step.

    Raises ValueError if `make_outer` returns no optimizer of all the tensors that it was given.
    """
    rounds = TrainingRounds(optimizer, travel, names, sync_every, make_outer)
    insert_class(optimizer, LocalOptimizer, _local_step)
    assert isinstance(optimizer, LocalOptimizer)
    optimizer._rounds = rounds
    return optimizer


def _local_step(optimizer: LocalOptimizer, step: Step, closure: Closure | None) -> Any:
    rounds = optimizer._rounds
    rounds.begin_step()
    if getattr(optimizer, "found_inf", None) is not None:
        result = _scaled_step(optimizer, step)
    else:
        result = step() if closure is None else step(closure)
    rounds.end_step()
    return result


def _scaled_step(optimizer: LocalOptimizer, step: Step) -> Any:
    """Do the step of a GradScaler, which has set `found_inf` and `grad_scale`, or skip it."""
    if _scales_itself(optimizer):
        return step()
    given = {name: optimizer.__dict__.pop(name) for name in ("found_inf", "grad_scale")}
    try:
        if given["found_inf"].item():
            return None
        if given["grad_scale"] is not None:  # they have not been unscaled by unscale_()
            _unscale(optimizer, given["grad_scale"].double().reciprocal().float())
        return step()
    finally:
        optimizer.__dict__.update(given)


def _scales_itself(optimizer: LocalOptimizer) -> bool:
    """Return whether the plain step() does what GradScaler asks for: a fused one."""
    if optimizer.__dict__.get("_step_supports_amp_scaling", False):
        return True
    return bool(getattr(optimizer._plain_class, "_step_supports_amp_scaling", False))


@torch.no_grad()
def _unscale(optimizer: LocalOptimizer, factor: torch.Tensor) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is not None:
                values = gradient._values() if gradient.is_sparse else gradient
                values.mul_(factor.to(values.device))
