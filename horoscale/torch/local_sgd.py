"""Local SGD: ranks take some steps independently, then average their parameters' changes.

A round consists of `sync_every` steps. At its beginning the parameters are equal on all ranks; a
copy of them is the anchor. At its end, the ranks average their change since then (anchor minus
parameters). Subtracted from the anchor, the average change gives the average of the ranks'
parameters (Stich, "Local SGD Converges Fast and Communicates Little", 2019). Alternatively, the
average change is the gradient for the step of an outer optimizer on the anchor (Douillard et al.,
"DiLoCo: Distributed Low-Communication Training of Language Models", 2023).
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

_LOCAL = "horoscale_local_sgd"  # the key in a state_dict


class LocalOptimizer(torch.optim.Optimizer):
    """The class that DistributedOptimizer(sync_every=...) inserts before the optimizer's own."""

    _plain_class: type[torch.optim.Optimizer]
    _rounds: TrainingRounds

    # GradScaler then calls step() even for a step to skip, so that every rank counts it: see
    # _scaled_step().
    _step_supports_amp_scaling = True

    @outside_graph
    def step(self, closure: Closure | None = None) -> Any:
        """Run the optimizer's step with local gradients. End the round if it is the last step.

        Every `sync_every`-th call is collective. Steps that GradScaler skips count.

        Args:
            closure: recomputes the loss, as for the wrapped optimizer.

        Returns:
            The result of the wrapped optimizer's step(); None for a step that GradScaler skips.

        Raises:
            HorovodInternalError: the synchronization failed. The local step is complete, and the
                parameters are this rank's local ones. The next step() synchronizes.
        """
        return _local_step(self, super().step, closure)

    step.hooked = True  # type: ignore[attr-defined] # the plain step runs the hooks

    @outside_graph
    def synchronize_parameters(self) -> None:
        """End the round now, for example at the end of an epoch. Collective.

        The ranks may have taken different numbers of steps. A rank without any contributes a change
        of zero. Does nothing if no rank has taken a step since the last synchronization, and on
        ranks outside the process set. Raises HorovodInternalError if the synchronization fails.
        """
        self._rounds.synchronize()

    @property
    def local_steps(self) -> int:
        """The number of calls to step() since the last synchronization."""
        return self._rounds.steps

    @property
    def outer_optimizer(self) -> torch.optim.Optimizer | None:
        """The outer optimizer, or None; use it, for example, to schedule its learning rate."""
        return self._rounds.outer

    def synchronize(self) -> None:
        """Do nothing: gradients stay local, and can be clipped before step()."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Do nothing: calls to step() in this context count, too."""
        yield

    def no_sync(self) -> Any:
        """Return a context that does nothing: backward passes always accumulate local gradients."""
        return nullcontext()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Check the number and ignore it: all backward passes before a step accumulate."""
        check_passes(passes)

    def set_loss_scale(self, scale: float) -> None:
        """Check the number and ignore it: the loss scale does not affect changes of parameters."""
        if not (math.isfinite(scale) and scale > 0):
            raise ValueError(f"set_loss_scale({scale!r}): expected a positive, finite number")

    def set_local_scale(self, scale: float) -> None:
        """Multiply this rank's changes by a factor before they are averaged, from now on.

        With the weight of the rank's share as the factor, the average is weighted by the ranks'
        numbers of samples (see hvd.elastic.DataPlan). Raises ValueError if the factor is not
        finite.
        """
        if not math.isfinite(scale):
            raise ValueError(f"set_local_scale({scale!r}): expected a finite number")
        self._rounds.scale = float(scale)

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state and that of the round: steps, anchor and outer state.

        Within a round, parameters and therefore checkpoints differ between ranks.
        """
        state = super().state_dict()
        state[_LOCAL] = self._rounds.save()
        residuals = self._residuals().save()
        if residuals is not None:
            state[RESIDUALS] = residuals
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the optimizer's state. The state of a plain optimizer starts a new round.

        Raises ValueError if the outer optimizer's parameter groups differ.
        """
        super().load_state_dict(state_dict)
        self._rounds.load(state_dict.get(_LOCAL))
        if self._residuals().are_kept:
            self._residuals().load(state_dict.get(RESIDUALS))

    def _residuals(self) -> Residuals:
        travel = self._rounds.travel
        return Residuals(travel.selection, travel.process_set)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A copy (copy.deepcopy, pickle) is a plain optimizer of the user's class, which can be
        # wrapped again.
        return object.__new__, (self._plain_class,), self.__getstate__()


def train_locally(
    optimizer: torch.optim.Optimizer,
    travel: Travel,
    names: dict[torch.Tensor, str],
    sync_every: int,
    make_outer: MakeOuter | None,
) -> LocalOptimizer:
    """Change the optimizer's class, so that every `sync_every`-th step synchronizes.

    Raises ValueError unless `make_outer` returns an optimizer of all the tensors that it receives.
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
    """Run or skip a step for a GradScaler, which has set `found_inf` and `grad_scale`."""
    if _scales_itself(optimizer):
        return step()
    given = {name: optimizer.__dict__.pop(name) for name in ("found_inf", "grad_scale")}
    try:
        if given["found_inf"].item():
            return None
        if given["grad_scale"] is not None:  # unscale_() was not called
            _unscale(optimizer, given["grad_scale"].double().reciprocal().float())
        return step()
    finally:
        optimizer.__dict__.update(given)


def _scales_itself(optimizer: LocalOptimizer) -> bool:
    """Return whether the plain step() handles `found_inf` and `grad_scale`, as fused ones do."""
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
