"""The optimizer that DistributedOptimizer() returns: its step waits for reduced gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from horoscale.common import rank
from horoscale.common.job import is_initialized
from horoscale.torch.compiling import outside_graph
from horoscale.torch.insertion import insert_class
from horoscale.torch.low_rank import LowRank
from horoscale.torch.options import check_passes
from horoscale.torch.overlap import OverlappedStep
from horoscale.torch.reducer import GradientReducer
from horoscale.torch.residuals import RESIDUALS, Residuals
from horoscale.torch.user_warning import warn_user

Closure = Callable[[], Any]

# Keys of a state_dict with PowerSGD or another lossy compression.
_LOW_RANK = "horoscale_powersgd"
_LOSS_SCALE = "horoscale_loss_scale"


class ReducedStep(torch.optim.Optimizer):
    """Inserted before the class of the user's optimizer; its step uses reduced gradients."""

    _plain_class: type[torch.optim.Optimizer]
    _reducer: GradientReducer
    _by_step: bool  # step() reduces the gradients; False within skip_synchronize()
    _overlap: OverlappedStep | None
    _synchronized: bool  # by the user, since the last step
    _loss_scale: float = 1.0  # of PowerSGD's errors

    @outside_graph
    def step(self, closure: Closure | None = None) -> Any:
        """Wait for the reduced gradients and apply them.

        Args:
            closure: reevaluates the model and returns the loss, as for any optimizer. The gradients
                are reduced after each call.

        Returns:
            The result of the optimizer's own step().

        Raises:
            HorovodInternalError: a reduction failed, and the parameters are unchanged. With
                overlap_step=True, the next forward pass or the next read of a parameter raises it.
        """
        return reduced_step(self, super().step, closure)

    # PyTorch adds its step hooks to every step() without this attribute. The step() of the user's
    # class, which this one calls, already runs them.
    step.hooked = True  # type: ignore[attr-defined]

    @outside_graph
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients; set_to_none=False fills them with zeros in place, which is slower.

        Raises AssertionError between backward() and step(), while the gradients are being reduced.
        """
        reducer, overlap = self._reducer, self._overlap
        # No other rank misses gradients that are still local, but clearing them is hardly intended.
        if self._unused(pending=not reducer.ready_in_backward):
            raise AssertionError(_zero_grad_too_early(reducer))
        reducer.clear()
        self._synchronized = False
        if overlap is not None and overlap.outstanding:
            overlap.zero_grad(set_to_none)
            return
        super().zero_grad(set_to_none)

    @outside_graph
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group; its gradients are reduced from now on."""
        super().add_param_group(param_group)
        if is_initialized() and self._reducer.settings.takes_part():
            self._reducer.adopt()

    @outside_graph
    def synchronize(self) -> None:
        """Wait until all gradients are reduced, for example to clip them before the step.

        Call step() within skip_synchronize() afterwards. Collective over the process set. Does
        nothing on ranks outside of it, or if all gradients are already reduced.
        """
        self._reduce()
        self._synchronized = True

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients locally: backward passes within this context are not counted.

        The first backward pass after it reduces the accumulated gradients, as with
        DistributedDataParallel's no_sync(). You don't need it with backward_passes_per_step, which
        counts the passes itself.
        """
        paused, self._reducer.paused = self._reducer.paused, True
        try:
            yield
        finally:
            self._reducer.paused = paused

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Make step() use the gradients as they are, after synchronize()."""
        self._by_step = False
        try:
            yield
        finally:
            self._by_step = True

    @outside_graph
    def finish_step(self) -> None:
        """Complete the last step(), if overlap_step=True has deferred a part of it.

        You only need it to read weights in another way than through the model's modules. Raises
        HorovodInternalError if a reduction failed.
        """
        if self._overlap is not None:
            self._overlap.finish()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Set the number of backward passes per step.

        Raises ValueError if it is not positive, AssertionError between backward() and step().
        """
        check_passes(passes)
        if self._reducer.pending:
            raise AssertionError("backward_passes_per_step can't change before step() is done")
        self._reducer.passes = passes
        for group in self._reducer.groups:
            group.passes = passes

    def set_local_scale(self, scale: float) -> None:
        """Multiply this rank's gradients by a factor before they are reduced, from now on.

        The factor may differ between ranks. If ranks have different numbers of samples, weight
        each rank by its share, and the average over the ranks becomes the mean over all samples
        (see hvd.elastic.DataPlan). With 0, this rank contributes zeros. Optimizers that share
        parameters share this factor.

        Raises ValueError if it is not finite, AssertionError between backward() and step().
        """
        if not math.isfinite(scale):
            raise ValueError(f"set_local_scale({scale!r}): expected a finite number")
        if self._unused(pending=True):
            raise AssertionError("the local scale can't change between backward() and step()")
        self._reducer.set_scale(float(scale))

    def set_loss_scale(self, scale: float) -> None:
        """Announce the factor by which losses, and therefore gradients, are multiplied from now on.

        Lossy compression keeps errors of earlier steps; they are rescaled to the new factor. With
        GradScaler, call optimizer.set_loss_scale(scaler.get_scale()) before each backward pass.
        Training without a scaled loss does not need it.

        Raises ValueError unless it is positive and finite, AssertionError between backward() and
        step().
        """
        if not (math.isfinite(scale) and scale > 0):
            raise ValueError(f"set_loss_scale({scale!r}): expected a positive, finite number")
        if self._unused(pending=True):
            raise AssertionError("the loss scale can't change between backward() and step()")
        factor, self._loss_scale = scale / self._loss_scale, float(scale)
        for _, one in self._low_rank():
            one.scale(factor)
        residuals = self._residuals()
        if residuals.are_kept and residuals.loss_scale != scale:
            self.finish_step()
            residuals.rescale(float(scale))

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The optimizer's parameter groups; reading them waits for gradients in flight.

        GradScaler decides from the gradients whether to skip a step, and reads them here. All ranks
        see the same averages, and decide alike. A rank without any backward pass since the last
        step has no gradients in flight: if that can happen, all ranks have to call synchronize(),
        and scaler.step() within skip_synchronize().
        """
        reducer = self.__dict__.get("_reducer")
        in_backward = torch._C._current_graph_task_id() != -1
        if reducer is not None and not in_backward and self._unused():
            self._reduce()
        return self._plain_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.__dict__["param_groups"] = groups

    @property
    def _plain_groups(self) -> list[dict[str, Any]]:
        try:
            groups: list[dict[str, Any]] = self.__dict__["param_groups"]
        except KeyError:  # a wrapper imitates this class, and stores the groups elsewhere
            raise AttributeError("param_groups") from None
        return groups

    def _unused(self, pending: bool = False) -> bool:
        """Return whether gradients are in flight (or just `pending`) that no step has used."""
        reducer, overlap = self._reducer, self._overlap
        if overlap is not None and overlap.applying:
            return False  # the step itself reads them
        if overlap is None or not overlap.outstanding:
            return reducer.pending if pending else reducer.in_flight
        groups = [group for group in reducer.groups if not overlap.has(group)]
        return any(group.pending if pending else group.in_flight for group in groups)

    def _begin_overlapped_step(self) -> bool:
        """Defer this step until the parameters are read; return whether that is possible."""
        overlap, reducer = self._overlap, self._reducer
        if overlap is None or not reducer.settings.takes_part() or reducer.reduced:
            return False
        reducer.adopt()
        if not overlap.possible:
            return False
        overlap.begin()
        self._opt_called = True  # learning rate schedulers check it
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state, with the errors that lossy compression keeps.

        Completes a deferred step first.
        """
        self.finish_step()
        state = super().state_dict()
        low_rank = {name: one.save() for name, one in self._low_rank()}
        if low_rank:
            state[_LOW_RANK] = {"rank": rank() if is_initialized() else 0, "states": low_rank}
        residuals = self._residuals()
        saved = residuals.save()
        if saved is not None:
            state[RESIDUALS] = saved
            state[_LOSS_SCALE] = residuals.loss_scale
        elif low_rank:
            state[_LOSS_SCALE] = self._loss_scale
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what state_dict() has returned. Completes a deferred step first."""
        self.finish_step()
        super().load_state_dict(state_dict)
        saved = state_dict.get(_LOW_RANK, {"rank": -1, "states": {}})
        is_own = is_initialized() and saved["rank"] == rank()
        for name, one in self._low_rank():
            if name in saved["states"]:
                one.load(saved["states"][name], is_own)
        if self._residuals().are_kept:
            self._residuals().load(state_dict.get(RESIDUALS), state_dict.get(_LOSS_SCALE))
        self._loss_scale = state_dict.get(_LOSS_SCALE, self._loss_scale)

    def _low_rank(self) -> list[tuple[str, LowRank]]:
        """Return the state that PowerSGD keeps for each parameter, by name."""
        return [
            (gradient.name, one)
            for group in self._reducer.groups
            for gradient in group.gradients
            if (one := group.low_rank[gradient.parameter]) is not None
        ]

    def _residuals(self) -> Residuals:
        settings = self._reducer.settings
        return Residuals(settings.selection, settings.process_set)

    def _reduce(self) -> None:
        """Reduce all gradients that are not reduced yet.

        Reading param_groups may have done so on this rank and not on others. This is safe, because
        every rank reduces the gradients of a step exactly once.
        """
        self.finish_step()
        if self._reducer.settings.takes_part():
            self._reducer.synchronize()

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Operations in flight, hooks and shared memory belong to this process and these parameters.
        # So a copy (copy.deepcopy, pickle) is an optimizer of the user's class.
        self.finish_step()
        return object.__new__, (self._plain_class,), self.__getstate__()


def reduce_gradients(
    optimizer: torch.optim.Optimizer, reducer: GradientReducer, overlap_step: bool
) -> ReducedStep:
    """Turn an optimizer into a ReducedStep whose gradients `reducer` reduces."""
    if reducer.settings.takes_part():
        reducer.adopt()
    insert_class(optimizer, ReducedStep, reduced_step)
    assert isinstance(optimizer, ReducedStep)
    optimizer._reducer = reducer
    optimizer._by_step = True
    optimizer._overlap = OverlappedStep(optimizer, reducer) if overlap_step else None
    optimizer._synchronized = False
    return optimizer


def reduced_step(optimizer: ReducedStep, step: Callable[..., Any], closure: Closure | None) -> Any:
    """Run `step`, the optimizer's own step, with reduced gradients."""
    optimizer.finish_step()
    try:
        return _step_or_begin(optimizer, step, closure)
    finally:
        optimizer._synchronized = False
        optimizer._reducer.end_step()


def _step_or_begin(
    optimizer: ReducedStep, step: Callable[..., Any], closure: Closure | None
) -> Any:
    if not optimizer._by_step:
        return step() if closure is None else step(closure)
    if optimizer._synchronized and not optimizer._reducer.pending:
        warn_user(  # Horovod's wording, which users search for
            "optimizer.step() called without optimizer.skip_synchronize() context after "
            "optimizer.synchronize(). This can cause training slowdown. You may want to consider "
            "using optimizer.skip_synchronize() context if you use optimizer.synchronize() in your "
            "code."
        )
    if closure is not None:

        def reduced_closure() -> Any:
            optimizer._reducer.use()  # the closure computes new gradients
            loss = closure()
            optimizer._reduce()
            return loss

        return step(reduced_closure)
    if optimizer._begin_overlapped_step():
        return None
    optimizer._reduce()
    return step()


def _zero_grad_too_early(reducer: GradientReducer) -> str:
    text = (
        "optimizer.zero_grad() was called after loss.backward() and before optimizer.step() or "
        "optimizer.synchronize(): the gradients are still being reduced. Call one of these before"
    )
    if not reducer.ready_in_backward and not reducer.overlaps:
        text += (
            "; or, where backward() computes gradients that are not for a step (a GAN's), have it "
            "wait for them: DistributedOptimizer(..., gradients_ready='backward')"
        )
    return text
