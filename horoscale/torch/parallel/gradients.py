"""Gradients on a mesh: averaged over data, clipped by the norm of the whole model, unscaled."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from horoscale._core import ReduceOp
from horoscale.torch.functions import broadcast_parameters as broadcast
from horoscale.torch.optimizer import DistributedOptimizer as AveragingOptimizer
from horoscale.torch.parallel.division import Shard, declared_shards
from horoscale.torch.parallel.mesh import Axis, Mesh
from horoscale.torch.parallel.zero.sharded import Sharded, sharded_in
from horoscale.torch.reductions import allreduce_, grouped_allreduce_


def DistributedOptimizer(  # noqa: N802 (hvd.DistributedOptimizer's name)
    optimizer: torch.optim.Optimizer, model: nn.Module, mesh: Mesh, **options: Any
) -> Any:
    """Make an optimizer average its gradients over the ranks that train the same parameters.

    These are the ranks of dp and cp: they have the same shards, but different samples or different
    tokens. The losses of cp's ranks must be means over equal numbers of tokens.

    Args:
        optimizer: any torch.optim.Optimizer of the model's parameters.
        model: the model, or this rank's stage of it.
        mesh: the mesh.
        options: options of hvd.DistributedOptimizer, except named_parameters and process_set.

    Returns:
        The result of hvd.DistributedOptimizer. If there is only one such rank, the optimizer, with
        synchronize(), synchronize_parameters(), skip_synchronize() and no_sync() that do nothing.
    """
    if sharded_in(model):
        raise ValueError("this model is sharded: use par.ZeroOptimizer()")
    same = mesh["dp", "cp"]
    if same.set is not None:
        return AveragingOptimizer(
            optimizer, model.named_parameters(), process_set=same.set, **options
        )
    alone: Any = optimizer
    alone.synchronize = alone.synchronize_parameters = lambda: None
    alone.skip_synchronize = alone.no_sync = nullcontext
    return alone


def broadcast_parameters(model: nn.Module, mesh: Mesh) -> None:
    """Broadcast parameters to all ranks that share them. Collective.

    The values come from the first rank of dp and cp. For parameters that are not divided, they come
    from the first rank of tp, too. Call this if ranks have created or loaded different values.
    """
    state = model.state_dict()
    divided = {id(parameter) for parameter, _ in declared_shards(model)}
    whole = {
        name: value
        for name, value in model.state_dict(keep_vars=True).items()
        if id(value) not in divided
    }
    if mesh.tp.set is not None:
        broadcast({name: state[name] for name in whole}, mesh.tp.ranks[0], mesh.tp.set)
    same = mesh["dp", "cp"]
    if same.set is not None:
        broadcast(state, same.ranks[0], same.set)


def reduce_gradients(parameters: Iterable[nn.Parameter], axis: Axis) -> None:
    """Sum the ranks' gradients of parameters, in place. Collective; call it once per pass.

    Use it for parameters that are replicated on ranks which apply them to different parts of a
    sequence, in a module that does not support sequence parallelism. (This package's norms do it
    themselves.) A parameter without a gradient counts as zeros and gets a gradient. Frozen
    parameters, which must be the same on all ranks, are skipped.
    """
    if axis.set is None:
        return
    gradients = []
    for parameter in parameters:
        if not parameter.requires_grad:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        gradients.append(parameter.grad)
    if gradients:
        grouped_allreduce_(gradients, op=ReduceOp.SUM, process_set=axis.set)


@torch.no_grad()
def clip_grad_norm_(
    model: nn.Module,
    max_norm: float,
    mesh: Mesh,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    exclude: Iterable[nn.Parameter] = (),
) -> torch.Tensor:
    """Scale the gradients so that the norm over the whole model is at most `max_norm`. Collective.

    The result equals torch.nn.utils.clip_grad_norm_() of the undivided model: norms are combined
    over the shards of tp, the stages of pp, and the axis of shard(). Call it after the gradients
    are averaged:

        optimizer.synchronize()
        par.clip_grad_norm_(model, 1.0, mesh)
        with optimizer.skip_synchronize():
            optimizer.step()

    Args:
        model: the model, or this rank's stage of it.
        max_norm: the maximum norm.
        mesh: the mesh.
        norm_type: the order of the norm; math.inf for the maximum.
        error_if_nonfinite: whether to raise an error if the norm is nan or infinite.
        exclude: parameters that another rank of pp also has and counts, such as tied embeddings.

    Returns:
        The norm before clipping, the same on all ranks.

    Raises:
        RuntimeError: the norm is nan or infinite, and `error_if_nonfinite` is set.
    """
    gradients = [one.grad for one in model.parameters() if one.grad is not None]
    is_own = _owner_of_norms(model, mesh, exclude)
    device = gradients[0].device if gradients else torch.device("cpu")
    is_greatest = norm_type == torch.inf
    operator = ReduceOp.MAX if is_greatest else ReduceOp.SUM
    counted = [one.grad for one in model.parameters() if one.grad is not None and is_own(one)]
    total = _power(counted, norm_type, device)
    for sharded in sharded_in(model):
        gradients += sharded.owned_gradients()
        counted = [part for one, part in sharded.parts_of_gradients() if is_own(one)]
        of_shards = _power(counted, norm_type, device)
        if sharded.axis.set is not None:
            allreduce_(of_shards, op=operator, process_set=sharded.axis.set)
        total = torch.maximum(total, of_shards) if is_greatest else total + of_shards
    axis = mesh["tp", "pp"]
    if axis.set is not None:
        allreduce_(total, op=operator, process_set=axis.set)
    norm = total if is_greatest else total.pow(1.0 / norm_type)
    if error_if_nonfinite and not torch.isfinite(norm):
        raise RuntimeError(f"the norm of the gradients is {float(norm)}")
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for one in gradients:
        one.mul_(factor.to(one.device, one.dtype))
    return norm


def _power(gradients: list[torch.Tensor], norm_type: float, device: torch.device) -> torch.Tensor:
    """Return the summand of several tensors for a norm; for the norm inf, their maximum."""
    norms = [torch.linalg.vector_norm(one.double(), norm_type) for one in gradients]
    own = torch.stack(norms).to(device) if norms else torch.zeros(1, device=device).double()
    return own.max() if norm_type == torch.inf else own.pow(norm_type).sum()


def _owner_of_norms(
    model: nn.Module, mesh: Mesh, exclude: Iterable[nn.Parameter]
) -> Callable[[nn.Parameter], bool]:
    """Return a predicate for gradients that count here: shared ones count on tp's first rank."""
    shards: dict[int, Shard] = {id(one): shard for one, shard in declared_shards(model)}
    excluded = {id(one) for one in exclude}

    def is_own(parameter: nn.Parameter) -> bool:
        shard = shards.get(id(parameter))
        divided = shard is not None and set(mesh.tp.ranks) <= set(shard.axis.ranks)
        return id(parameter) not in excluded and (divided or mesh.tp.rank == 0)

    return is_own


class GradScaler(torch.amp.GradScaler):
    """torch.amp.GradScaler that skips a step on all ranks of tp and pp together.

    Otherwise, an overflow in one rank's shard would skip the step on that rank only. The ranks of
    dp and cp agree anyway, because their gradients are averaged. The ranks of a ZeroOptimizer,
    which have different gradients, take part in the decision, too.
    """

    def __init__(self, mesh: Mesh, device: str = "cpu", **options: Any) -> None:
        """Create a scaler for a mesh. The options are those of torch.amp.GradScaler."""
        super().__init__(device, **options)
        self._axis = mesh["tp", "pp"]

    def get_scale(self) -> float:
        """Return the scale, for a Pipeline's step(); scale() need not be called then."""
        if self.is_enabled() and self._scale is None:
            self._lazy_init_scale_growth_tracker(torch.device(self._device))
        return super().get_scale()

    def _unscale_grads_(self, *arguments: Any, **options: Any) -> Any:
        optimizer = arguments[0]
        sharded: Sharded | None = getattr(optimizer, "sharded", None)
        if sharded is not None:
            optimizer.synchronize()
        found: dict[torch.device, torch.Tensor] = super()._unscale_grads_(*arguments, **options)
        axes = [self._axis] if sharded is None else [sharded.axis, self._axis]
        sets = [axis.set for axis in axes if axis.set is not None]
        if sets:
            # A rank whose parameters have no gradients has looked for nothing.
            first = next(iter(found.values()), torch.zeros(1))
            any_infinite = torch.stack([one.to(first.device) for one in found.values()] or [first])
            greatest = any_infinite.max().reshape(1)
            for process_set in sets:
                allreduce_(greatest, op=ReduceOp.MAX, process_set=process_set)
            for one in found.values():
                one.copy_(greatest.reshape(one.shape))
        return found
