"""DistributedOptimizer: an optimizer whose gradients are reduced over the ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from horoscale._core import UnsupportedError
from horoscale.common import Adasum, Average, rank
from horoscale.common.arguments import resolve_op, set_id
from horoscale.common.job import at_end, current_runtime, is_initialized
from horoscale.common.process_sets import ProcessSet, at_removal, global_process_set
from horoscale.torch.adasum import AdasumStep, distribute_steps
from horoscale.torch.compiling import outside_graph
from horoscale.torch.compression import Compression, NoneCompressor, select
from horoscale.torch.gradients import Settings
from horoscale.torch.insertion import insert_class
from horoscale.torch.local_sgd import LocalOptimizer, MakeOuter, Travel, train_locally
from horoscale.torch.low_rank import LowRank, PowerSGD
from horoscale.torch.options import (
    NamedParameters,
    check_local,
    check_passes,
    grouping_of,
    names_of,
    ready_in_backward,
    reduction_of,
)
from horoscale.torch.overlap import SEPARABLE, OverlappedStep
from horoscale.torch.reducer import GradientReducer, Parameters
from horoscale.torch.residuals import RESIDUALS, Residuals
from horoscale.torch.user_warning import warn_user

Closure = Callable[[], Any]

# In a state_dict, where compression loses something, or is PowerSGD.
_LOW_RANK = "horoscale_powersgd"
_LOSS_SCALE = "horoscale_loss_scale"  # that they are of

# By process set, whose residuals are those of all its optimizers: the scale that they have.
_residual_scales: dict[int, float] = {}
at_end(_residual_scales.clear)


def _forget_scale(process_set: int) -> None:
    # The next set of this id begins without residuals.
    _residual_scales.pop(process_set, None)


at_removal(_forget_scale)


class _Distributed(torch.optim.Optimizer):
    """What DistributedOptimizer() puts before the class of the user's optimizer."""

    _plain_class: type[torch.optim.Optimizer]
    _reducer: GradientReducer
    _by_step: bool  # step() reduces the gradients itself: not within skip_synchronize()
    _overlap: OverlappedStep | None
    _synchronized: bool  # by the user, since the last step
    _loss_scale: float = 1.0  # of what PowerSGD keeps

    @outside_graph
    def step(self, closure: Closure | None = None) -> Any:
        """Wait for the reduced gradients and do the optimizer's step with them.

        Args:
            closure: computes the loss anew, as for the optimizer itself; its gradients are reduced
                each time that it was called.

        Returns:
            What the optimizer's step() returns.

        Raises:
            HorovodInternalError: a reduction failed; no step was done. With overlap_step=True the
                forward pass raises it, or whoever reads the parameter.
        """
        return _reduced_step(self, super().step, closure)

    # PyTorch puts its own hooks around a step() that does not say that it has them; the step of the
    # user's class, which this one calls, has them.
    step.hooked = True  # type: ignore[attr-defined]

    @outside_graph
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients; set_to_none=False makes them zeros where they are, which is slower.

        Raises AssertionError between backward() and step(), while they are reduced.
        """
        reducer, overlap = self._reducer, self._overlap
        # Local gradients are nobody else's affair, but dropping them is rarely meant.
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
        """Add a parameter group, whose gradients are reduced from now on."""
        super().add_param_group(param_group)
        if is_initialized() and self._reducer.settings.takes_part():
            self._reducer.adopt()

    @outside_graph
    def synchronize(self) -> None:
        """Wait until all gradients are reduced, for example to clip them before the step.

        Call step() within skip_synchronize() then. Collective over the process set; does nothing on
        ranks outside of it, and where all gradients are reduced already.
        """
        self._reduce()
        self._synchronized = True

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients on this rank: backward passes within it are not counted.

        The first backward pass after it reduces what has been added up, as with
        DistributedDataParallel's no_sync(). Nothing of the kind is needed with
        backward_passes_per_step, which counts the passes.
        """
        paused, self._reducer.paused = self._reducer.paused, True
        try:
            yield
        finally:
            self._reducer.paused = paused

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Have step() use the gradients as they are: after synchronize()."""
        self._by_step = False
        try:
            yield
        finally:
            self._by_step = True

    @outside_graph
    def finish_step(self) -> None:
        """Do at once what is left of the last step(), with overlap_step=True.

        Only for who reads weights in another way than through the model's modules. Raises
        HorovodInternalError if a reduction failed.
        """
        if self._overlap is not None:
            self._overlap.finish()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change how many backward passes precede a step; not between backward() and step()."""
        check_passes(passes)
        if self._reducer.pending:
            raise AssertionError("backward_passes_per_step can't change before step() is done")
        self._reducer.passes = passes
        for group in self._reducer.groups:
            group.passes = passes

    def set_local_scale(self, scale: float) -> None:
        """Multiply this rank's gradients by a number before they are reduced, from now on.

        Each rank may have another: with its share's weight the average over the ranks is the mean
        over their samples, whose numbers may differ (see hvd.elastic.DataPlan). With 0 the rank
        gives zeros, whatever its gradients are. Not between backward() and step(). Optimizers that
        share parameters share this number.

        Raises ValueError for what is not finite, AssertionError while gradients are reduced.
        """
        if not math.isfinite(scale):
            raise ValueError(f"set_local_scale({scale!r}): expected a finite number")
        if self._unused(pending=True):
            raise AssertionError("the local scale can't change between backward() and step()")
        self._reducer.set_scale(float(scale))

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The optimizer's parameter groups, whose gradients are reduced when they are looked at.

        That is how GradScaler, which knows nothing of this class, sees the same gradients on all
        ranks before it decides whether a step is to be done. A rank that may have had no backward
        pass at all since the last step has nothing to look for: with GradScaler it has to call
        synchronize(), and scaler.step() within skip_synchronize(), as all ranks then do.
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
        except KeyError:  # of a wrapper that imitates this class, and looks for it elsewhere
            raise AttributeError("param_groups") from None
        return groups

    def _unused(self, pending: bool = False) -> bool:
        """Tell whether gradients are in flight, or `pending` at least, that no step knows of."""
        reducer, overlap = self._reducer, self._overlap
        if overlap is not None and overlap.applying:
            return False  # it is the step that looks
        if overlap is None or not overlap.outstanding:
            return reducer.pending if pending else reducer.in_flight
        groups = [group for group in reducer.groups if not overlap.has(group)]
        return any(group.pending if pending else group.in_flight for group in groups)

    def _begin_overlapped_step(self) -> bool:
        """Leave this step to the readers of the parameters, if that can be."""
        overlap, reducer = self._overlap, self._reducer
        if overlap is None or not reducer.settings.takes_part() or reducer.reduced:
            return False
        reducer.adopt()
        if not overlap.possible:
            return False
        overlap.begin()
        self._opt_called = True  # what learning rate schedulers look at
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state, after what is left of an overlapped step."""
        self.finish_step()
        state = super().state_dict()
        low_rank = {name: one.save() for name, one in self._low_rank()}
        if low_rank:
            state[_LOW_RANK] = {"rank": rank() if is_initialized() else 0, "states": low_rank}
        residuals = self._residuals().save()
        if residuals is not None:
            state[RESIDUALS] = residuals
            process_set = set_id(self._reducer.settings.process_set)
            state[_LOSS_SCALE] = _residual_scales.get(process_set, 1.0)
        elif low_rank:
            state[_LOSS_SCALE] = self._loss_scale
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the optimizer's state, after what is left of an overlapped step."""
        self.finish_step()
        super().load_state_dict(state_dict)
        saved = state_dict.get(_LOW_RANK, {"rank": -1, "states": {}})
        is_own = is_initialized() and saved["rank"] == rank()
        for name, one in self._low_rank():
            if name in saved["states"]:
                one.load(saved["states"][name], is_own)
        if self._residuals().are_kept:
            self._residuals().load(state_dict.get(RESIDUALS))
            if _LOSS_SCALE in state_dict:
                process_set = set_id(self._reducer.settings.process_set)
                _residual_scales[process_set] = state_dict[_LOSS_SCALE]
        self._loss_scale = state_dict.get(_LOSS_SCALE, self._loss_scale)

    def set_loss_scale(self, scale: float) -> None:
        """Say by which number losses, and so gradients, are multiplied from now on.

        What lossy compression still has to send was scaled by the number before, and is scaled
        anew. With GradScaler: optimizer.set_loss_scale(scaler.get_scale()) before each backward
        pass. Nothing else needs it. Raises ValueError unless it is positive and finite,
        AssertionError while gradients are reduced.
        """
        if not (math.isfinite(scale) and scale > 0):
            raise ValueError(f"set_loss_scale({scale!r}): expected a positive, finite number")
        if self._unused(pending=True):
            raise AssertionError("the loss scale can't change between backward() and step()")
        factor, self._loss_scale = scale / self._loss_scale, float(scale)
        for _, one in self._low_rank():
            one.scale(factor)
        if not self._residuals().are_kept:
            return
        process_set = set_id(self._reducer.settings.process_set)
        factor = scale / _residual_scales.get(process_set, 1.0)
        if factor != 1.0:
            self.finish_step()
            current_runtime().scale_residuals(process_set, factor)
            _residual_scales[process_set] = float(scale)

    def _low_rank(self) -> list[tuple[str, LowRank]]:
        """Return what PowerSGD keeps of each parameter, by name."""
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
        """Reduce what is not reduced yet.

        This rank may have done so when it looked at param_groups, where others have not: each of
        them reduces the gradients of a step once.
        """
        self.finish_step()
        if self._reducer.settings.takes_part():
            self._reducer.synchronize()

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Operations in flight, hooks and shared memory belong to this process and these parameters:
        # a copy (copy.deepcopy, pickle) is an optimizer of the user's class, to be wrapped again.
        self.finish_step()
        return object.__new__, (self._plain_class,), self.__getstate__()


def _reduced_step(
    optimizer: _Distributed, step: Callable[..., Any], closure: Closure | None
) -> Any:
    """Do `step`, the plain step of an optimizer, with reduced gradients."""
    optimizer.finish_step()
    try:
        return _step_or_begin(optimizer, step, closure)
    finally:
        optimizer._synchronized = False
        optimizer._reducer.end_step()


def _step_or_begin(
    optimizer: _Distributed, step: Callable[..., Any], closure: Closure | None
) -> Any:
    if not optimizer._by_step:
        return step() if closure is None else step(closure)
    if optimizer._synchronized and not optimizer._reducer.pending:
        warn_user(  # in Horovod's words, which scripts and their readers know
            "optimizer.step() called without optimizer.skip_synchronize() context after "
            "optimizer.synchronize(). This can cause training slowdown. You may want to consider "
            "using optimizer.skip_synchronize() context if you use optimizer.synchronize() in your "
            "code."
        )
    if closure is not None:

        def reduced_closure() -> Any:
            optimizer._reducer.use()  # what was reduced before is not what the closure computes
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


def DistributedOptimizer(  # noqa: N802 (Horovod's name; it used to be a class)
    optimizer: torch.optim.Optimizer,
    named_parameters: NamedParameters | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Parameters] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    overlap_step: bool = False,
    gradients_ready: str | None = None,
    sync_every: int | None = None,
    outer_optimizer: MakeOuter | None = None,
) -> Any:
    """Make an optimizer reduce its gradients over the ranks before each step.

    Each gradient is reduced as soon as the backward pass has computed it, while it computes the
    others. The optimizer is changed itself, and stays an instance of its class: its state, its
    schedulers and its hooks go on. Copies of it (copy.deepcopy, pickle) are plain optimizers.

    Until a reduction is finished, a parameter's `grad` is this rank's own gradient, which must not
    be changed (where there is no shared memory for the average, on a GPU for example, it may hold
    parts of that already). synchronize() and step() make it the average. Who wants to change
    averages, to clip them for example, calls synchronize() before, and step() within
    skip_synchronize(); or has backward() return averages by `gradients_ready`. Hooks on accumulated
    gradients (register_post_accumulate_grad_hook) find this rank's own if they are registered
    before this call.

    The averages are in memory that the ranks of a host share. The next step's take their place,
    also after zero_grad(): clone a gradient to keep it. A parameter that plays no part in this
    rank's loss counts as zeros, and its gradient is what the other ranks have.

    Args:
        optimizer: any torch.optim.Optimizer.
        named_parameters: usually model.named_parameters(), at least for the optimizer's parameters;
            the names appear in errors and timelines. None: parameters are numbered.
        compression: how gradients travel between hosts, where nothing is rounded within one:
            Compression.none; .fp16 or .bf16, which halve what hosts send each other; .int8, .int4,
            .onebit or .topk(ratio), which make it 4 to 100 times smaller and send later what they
            lose; .adaptive(error), which chooses one of these for each gradient, or none;
            .powersgd(rank), two thin matrices instead of one, also within hosts. These spare
            vectors, small parameters and, but for PowerSGD, embeddings. Or a table of them by
            patterns of names, {"*.weight": Compression.int8}, of which the first that matches
            counts, else none; a function of a name and a parameter that returns one; or a
            Compressor of your own, which is called. The same on all ranks.
        backward_passes_per_step: backward passes before a step; their gradients add up on the rank.
        op: Average or Sum; also Min, Max, Product. With Adasum step() does the optimizer's step
            with this rank's own gradients, and reduces by Adasum what that changes the parameters
            by: each rank's gradients, momenta and the like are its own. `groups` and `num_groups`
            have no effect then. GradScaler needs the same gradients on all ranks: not with Adasum.
        gradient_predivide_factor: divides the sum in two places: by this factor before it, by the
            rest (the ranks over the factor) after it. With Average only.
        num_groups: deprecated, as `groups` with a number.
        groups: gradients to be reduced together: a number of groups of equal length, or a list of
            lists of parameters, where parameters in none of them are on their own. None: horoscale
            fuses small gradients as they come.
        sparse_as_dense: reduce sparse gradients as dense ones, which the optimizer gets, unless it
            is a SparseAdam: that takes sparse ones. Otherwise their indices and values are
            gathered, which needs op=Average or op=Sum.
        process_set: the ranks that train together; ranks outside of it train on their own.
        overlap_step: let step() return at once. A parameter gets its update when it is read next,
            which is in the next forward pass, so that communication overlaps with that too. The
            results are the same, bit by bit. Weights have to be read through the model's modules
            (its forward pass, state_dict(), parameters(), attributes); who reads them otherwise
            calls optimizer.finish_step() before. Zero gradients by optimizer.zero_grad(): the
            model's reads all parameters. Steps in which gradients are looked at before
            (synchronize(), GradScaler), with a closure, with hooks on the optimizer, of compiled
            models, and the first one, are done as without it. For the optimizers of PyTorch that
            treat each parameter on its own: SGD, Adam, AdamW, RMSprop and their like.
        gradients_ready: when gradients are averages. "step": in step(), or after synchronize(), as
            with Horovod. A change before that is lost, which a warning says, unless it was made
            through `grad.data`, which PyTorch does not record. "backward": when backward() returns,
            as with DistributedDataParallel. So clip_grad_norm_() needs nothing else, zero_grad()
            may follow backward(), and a further backward() before step() is reduced again
            (op=Average only). It costs one tiny allreduce at the end of a backward pass, in which
            the ranks agree that all of them have all gradients; where a parameter had none on some
            rank, they come in step(). Not with overlap_step. None: what HOROSCALE_GRADIENTS_READY
            says, else "step".
        sync_every: local SGD, for networks that are too slow for gradients: each rank takes so many
            steps with its own gradients; then the ranks average how far their parameters have come.
            Gradients are not reduced; `compression` is that of the parameters' changes. See
            docs/local_sgd.md. op=Average only, and none of groups, sparse_as_dense, overlap_step,
            gradients_ready="backward" and PowerSGD. None: gradients are reduced in each step.
        outer_optimizer: with sync_every, takes a list of tensors and returns the optimizer that
            applies the average change to them, as in DiLoCo: for example lambda parameters:
            torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True). None: the parameters
            become the average of the ranks' parameters.

    Returns:
        The optimizer, with synchronize(), skip_synchronize(), no_sync() and
        set_backward_passes_per_step(); with sync_every also synchronize_parameters().

    Raises:
        ValueError: hvd.init() was not called; names are missing or not unique; an option is wrong;
            a parameter belongs to another DistributedOptimizer with other options.
        NotImplementedError: a combination is not possible, such as gradient_predivide_factor
            without op=Average, or op=Adasum with lossy compression, overlap_step or
            gradients_ready="backward".
    """
    if isinstance(optimizer, _Distributed | LocalOptimizer | AdasumStep):
        raise ValueError("the optimizer is a DistributedOptimizer already")
    if outer_optimizer is not None and sync_every is None:
        raise ValueError("outer_optimizer needs sync_every, the steps between synchronizations")
    if overlap_step and type(optimizer) not in SEPARABLE:
        known = ", ".join(one.__name__ for one in SEPARABLE)
        raise ValueError(
            f"overlap_step=True is not possible with {type(optimizer).__name__}, which may need "
            f"all gradients at once; it is with {known}"
        )
    in_backward = ready_in_backward(gradients_ready, overlap_step)
    if process_set.process_set_id is None or process_set.included() is not False:
        set_id(process_set)  # raises where it can't be used; ranks outside train on their own
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    check_passes(backward_passes_per_step)
    names = names_of(named_parameters, parameters)
    selection, compressor = select(compression, parameters)
    if sync_every is not None:
        check_local(
            sync_every,
            op=resolve_op(op),
            gradient_predivide_factor=gradient_predivide_factor,
            num_groups=num_groups,
            groups=groups,
            sparse_as_dense=sparse_as_dense,
            overlap_step=overlap_step,
            gradients_ready=gradients_ready,
            compression=compressor,
        )
        travel = Travel(selection, compressor, process_set)
        return train_locally(optimizer, travel, names, sync_every, outer_optimizer)
    if resolve_op(op) is Adasum:
        reduction_of(Adasum, gradient_predivide_factor)
        if selection.is_lossy or compressor is not NoneCompressor:
            raise UnsupportedError("lossy compression is not possible with op=Adasum")
        if overlap_step or in_backward:
            option = "overlap_step=True" if overlap_step else "gradients_ready='backward'"
            raise UnsupportedError(f"{option} is not possible with op=Adasum, which reduces steps")
        return distribute_steps(optimizer, backward_passes_per_step, process_set, sparse_as_dense)
    if isinstance(compressor, PowerSGD) and (overlap_step or resolve_op(op) is not Average):
        raise ValueError(f"{compressor!r} needs op=Average, and is not possible with overlap_step")
    settings = Settings(
        reduction_of(resolve_op(op), gradient_predivide_factor),
        compressor,
        selection,
        process_set,
        sparse_as_dense,
        sparse_as_dense and isinstance(optimizer, torch.optim.SparseAdam),
    )
    grouping = grouping_of(num_groups if groups is None else groups, parameters)
    reducer = GradientReducer(
        optimizer, settings, backward_passes_per_step, names, grouping, in_backward
    )
    reducer.overlaps = overlap_step
    return _distribute(optimizer, reducer, overlap_step)


def _distribute(
    optimizer: torch.optim.Optimizer, reducer: GradientReducer, overlap_step: bool
) -> _Distributed:
    """Change the class of an optimizer, and have its step reduce gradients."""
    if reducer.settings.takes_part():
        reducer.adopt()
    insert_class(optimizer, _Distributed, _reduced_step)
    assert isinstance(optimizer, _Distributed)
    optimizer._reducer = reducer
    optimizer._by_step = True
    optimizer._overlap = OverlappedStep(optimizer, reducer) if overlap_step else None
    optimizer._synchronized = False
    return optimizer
