"""Conversions between tensors that are whole on each rank and tensors that are divided.

Each function has the gradient of the whole program, as in one process that does the work of all
ranks of the axis. The functions come in pairs, each the other's gradient:

    copy_to                 does nothing            | reduce_from            sums over the ranks
    scatter_to              keeps this rank's part  | gather_from            joins the parts
    sequence_gather         joins the parts         | sequence_reduce_scatter  sums, then divides
    all_to_all              divides another dimension; its own counterpart

A whole tensor has the same value on all ranks, and so has its gradient. (The collectives of
horoscale.torch have Horovod's gradients, which are averages.) All functions are differentiable any
number of times, and collective: every rank of the axis must call them and run the backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from horoscale._core import ReduceOp
from horoscale.torch.collectives import Call, allgather_with_rows
from horoscale.torch.handles import Handle
from horoscale.torch.movement import allgather, allgather_async, alltoall
from horoscale.torch.parallel.division import bounds, split_sizes
from horoscale.torch.parallel.mesh import Axis
from horoscale.torch.reductions import (
    allreduce,
    allreduce_async_,
    reducescatter,
    reducescatter_async,
)

Sizes = Sequence[int] | None


class Ready:
    """The handle of a result that needed no operation."""

    def __init__(self, outcome: torch.Tensor) -> None:
        self._outcome = outcome

    def wait(self) -> torch.Tensor:
        """Return the result."""
        return self._outcome


def copy_to(x: torch.Tensor, axis: Axis) -> torch.Tensor:
    """Return the whole `x` for use in divided work. Its gradients are summed over the ranks.

    Megatron's copy_to_tensor_model_parallel_region; the function "f" of its paper
    (Shoeybi et al. 2019, figure 3).
    """
    return x if axis.size == 1 else _apply(_Copy, x, axis)


def reduce_from(x: torch.Tensor, axis: Axis) -> torch.Tensor:
    """Return the sum of the ranks' `x`, which is whole. Each rank gets the sum's gradient.

    Megatron's reduce_from_tensor_model_parallel_region; the function "g" of its paper.
    """
    return x if axis.size == 1 else _apply(_Reduce, x, axis)


def scatter_to(x: torch.Tensor, axis: Axis, dim: int = -1, sizes: Sizes = None) -> torch.Tensor:
    """Return this rank's part of the whole `x`. The gradients of the parts are joined.

    Args:
        x: a tensor with the same value on all ranks.
        axis: the ranks.
        dim: the dimension to divide.
        sizes: the size of each rank's part. None: divided as by split_sizes().

    Raises:
        ValueError: there is no such dimension, or the sizes do not add up to it.
    """
    if axis.size == 1:
        return x
    dim = _dim(x, dim, axis, "scatter_to")
    sizes = _whole_sizes(x, dim, axis, sizes, "scatter_to")
    return _apply(_Part, x, axis, dim, sizes, False)


def gather_from(x: torch.Tensor, axis: Axis, dim: int = -1, sizes: Sizes = None) -> torch.Tensor:
    """Join the ranks' parts. The gradient is this rank's part of the whole's gradient.

    Args:
        x: this rank's part.
        axis: the ranks.
        dim: the divided dimension.
        sizes: the size of each rank's part, which saves an exchange. None: the ranks exchange it.

    Raises:
        ValueError: there is no such dimension, or this rank's part has another size.
        MismatchError: the ranks' other dimensions or dtypes differ.
    """
    if axis.size == 1:
        return x
    dim = _dim(x, dim, axis, "gather_from")
    sizes = _part_sizes(x, dim, axis, sizes, "gather_from")
    return _apply(_Gather, x, axis, dim, sizes, False)


def sequence_scatter(
    x: torch.Tensor, axis: Axis, dim: int = 0, sizes: Sizes = None
) -> torch.Tensor:
    """Call scatter_to() along the sequence: from a whole tensor to sequence parallelism."""
    return scatter_to(x, axis, dim, sizes)


def sequence_gather(x: torch.Tensor, axis: Axis, dim: int = 0, sizes: Sizes = None) -> torch.Tensor:
    """Join the ranks' parts of the sequence for work that is divided in another way.

    Each rank uses the result differently, so its gradients are summed over the ranks, then divided.
    (After gather_from(), they are the same on all ranks.) Arguments and errors are those of
    gather_from().
    """
    if axis.size == 1:
        return x
    dim = _dim(x, dim, axis, "sequence_gather")
    sizes = _part_sizes(x, dim, axis, sizes, "sequence_gather")
    return _apply(_Gather, x, axis, dim, sizes, True)


def sequence_reduce_scatter(
    x: torch.Tensor, axis: Axis, dim: int = 0, sizes: Sizes = None
) -> torch.Tensor:
    """Return this rank's part of the sum of the ranks' `x`. The gradients of the parts are joined.

    Arguments and errors are those of scatter_to().
    """
    if axis.size == 1:
        return x
    dim = _dim(x, dim, axis, "sequence_reduce_scatter")
    sizes = _whole_sizes(x, dim, axis, sizes, "sequence_reduce_scatter")
    return _apply(_Part, x, axis, dim, sizes, True)


def all_to_all(
    x: torch.Tensor,
    axis: Axis,
    scatter_dim: int,
    gather_dim: int,
    scatter_sizes: Sizes = None,
    gather_sizes: Sizes = None,
) -> torch.Tensor:
    """Return `x`, which is divided along one dimension, divided along another one.

    For example, it converts divided sequences to divided heads, and back.

    Args:
        x: this rank's part along `gather_dim`, whole along `scatter_dim`.
        axis: the ranks.
        scatter_dim: the dimension that is divided afterwards.
        gather_dim: the dimension that is whole afterwards.
        scatter_sizes: the size of each rank's part of `scatter_dim`. None: divided as by
            split_sizes().
        gather_sizes: the size of each rank's part of `gather_dim`, which saves an exchange. None:
            the ranks exchange it.

    Raises:
        ValueError: the dimensions are equal or do not exist, or the sizes are wrong or cannot be
            determined because this rank gets nothing.
    """
    if axis.size == 1:
        return x
    scatter_dim = _dim(x, scatter_dim, axis, "all_to_all")
    gather_dim = _dim(x, gather_dim, axis, "all_to_all")
    if scatter_dim == gather_dim:
        raise ValueError(
            f"all_to_all on axis {axis.name}: dimension {gather_dim} is given as both scatter_dim "
            "and gather_dim"
        )
    to = _whole_sizes(x, scatter_dim, axis, scatter_sizes, "all_to_all")
    of = _part_sizes(x, gather_dim, axis, gather_sizes, "all_to_all")
    return _apply(_AllToAll, x, axis, scatter_dim, gather_dim, to, of)


# ---------------------------------------------------------------- without gradients, to overlap


def start_reduce(x: torch.Tensor, axis: Axis) -> Handle | Ready:
    """Start to sum the ranks' `x` in place; wait() of the result returns it."""
    if axis.set is None:
        return Ready(x)
    return allreduce_async_(x, op=ReduceOp.SUM, process_set=axis.set)


def start_gather(x: torch.Tensor, axis: Axis, dim: int = 0, sizes: Sizes = None) -> Handle | Ready:
    """Start to join the ranks' parts; wait() of the result returns the whole.

    Arguments and errors are those of gather_from(). Do not modify `x` until then.
    """
    if axis.set is None:
        return Ready(x)
    dim = _dim(x, dim, axis, "start_gather")
    sizes = _part_sizes(x, dim, axis, sizes, "start_gather")
    return start_gather_with_sizes(x.detach(), axis, dim, sizes).then(lambda outcome: outcome[0])


def start_gather_with_sizes(
    x: torch.Tensor, axis: Axis, dim: int = 0, sizes: Sizes = None
) -> Handle:
    """Run start_gather() among several ranks; the outcome is (whole, the size of each part)."""
    assert axis.set is not None
    rows = x.movedim(dim, 0).contiguous()
    if sizes is None:
        handle = allgather_with_rows([rows], Call(None, axis.set))
        return handle.then(lambda outcome: (outcome[0][0].movedim(0, dim), tuple(outcome[1][0])))
    out = rows.new_empty((sum(sizes), *rows.shape[1:]))
    handle = allgather_async(rows, process_set=axis.set, out=out)
    return handle.then(lambda whole: (whole.movedim(0, dim), sizes))


def start_reduce_scatter(
    x: torch.Tensor, axis: Axis, dim: int = 0, sizes: Sizes = None
) -> Handle | Ready:
    """Start to sum the ranks' `x`; wait() of the result returns this rank's part.

    Arguments and errors are those of scatter_to(). Do not modify `x` until then.
    """
    if axis.set is None:
        return Ready(x)
    dim = _dim(x, dim, axis, "start_reduce_scatter")
    sizes = _whole_sizes(x, dim, axis, sizes, "start_reduce_scatter")
    rows = x.detach().movedim(dim, 0).contiguous()
    out = rows.new_empty((sizes[axis.rank], *rows.shape[1:]))
    handle = reducescatter_async(
        rows, op=ReduceOp.SUM, process_set=axis.set, splits=_splits(sizes), out=out
    )
    return handle if dim == 0 else handle.then(lambda part: part.movedim(0, dim))


# ---------------------------------------------------------------- the operations


def _reduce(x: torch.Tensor, axis: Axis) -> torch.Tensor:
    assert axis.set is not None
    return allreduce(x, op=ReduceOp.SUM, process_set=axis.set)


def _gather(
    x: torch.Tensor, axis: Axis, dim: int, sizes: Sizes
) -> tuple[torch.Tensor, Sequence[int]]:
    assert axis.set is not None
    if sizes is None:
        outcome: tuple[torch.Tensor, Sequence[int]] = start_gather_with_sizes(
            x, axis, dim, None
        ).wait()
        return outcome
    rows = x.movedim(dim, 0).contiguous()
    out = rows.new_empty((sum(sizes), *rows.shape[1:]))
    return allgather(rows, process_set=axis.set, out=out).movedim(0, dim), sizes


def _reduce_scatter(x: torch.Tensor, axis: Axis, dim: int, sizes: Sequence[int]) -> torch.Tensor:
    assert axis.set is not None
    rows = x.movedim(dim, 0).contiguous()
    out = rows.new_empty((sizes[axis.rank], *rows.shape[1:]))
    reducescatter(rows, op=ReduceOp.SUM, process_set=axis.set, splits=_splits(sizes), out=out)
    return out.movedim(0, dim)


def _exchange(
    x: torch.Tensor, axis: Axis, scatter_dim: int, gather_dim: int, to: Sequence[int], of: Sizes
) -> tuple[torch.Tensor, Sequence[int]]:
    assert axis.set is not None
    parts = [part.contiguous() for part in torch.split(x, list(to), scatter_dim)]
    counts = [part.numel() for part in parts]
    sent = torch.cat([part.view(-1) for part in parts])
    shape = list(x.shape)
    shape[scatter_dim] = to[axis.rank]
    shape[gather_dim] = 1
    unit = torch.Size(shape).numel()
    if of is None:
        received, numbers = alltoall(sent, splits=counts, process_set=axis.set)
        if unit == 0:
            raise ValueError(
                f"all_to_all on axis {axis.name}: rank {axis.rank} gets nothing of "
                f"{tuple(x.shape)}: pass gather_sizes"
            )
        of = [number // unit for number in numbers.tolist()]
    else:
        received = sent.new_empty(unit * sum(of))
        alltoall(sent, splits=counts, process_set=axis.set, out=received)
    pieces = []
    for position, size in enumerate(of):
        begin, end = bounds(of, position)
        shape[gather_dim] = size
        pieces.append(received[unit * begin : unit * end].view(shape))
    return torch.cat(pieces, gather_dim), of


def _own(x: torch.Tensor, axis: Axis, dim: int, sizes: Sequence[int]) -> torch.Tensor:
    begin, end = bounds(sizes, axis.rank)
    # A copy, so that a part does not keep the whole alive.
    return x.narrow(dim, begin, end - begin).clone(memory_format=torch.contiguous_format)


def _splits(sizes: Sequence[int]) -> Sequence[int] | None:
    """Return the sizes for reducescatter(), which is faster if they are equal."""
    return None if len(set(sizes)) == 1 else list(sizes)


# ---------------------------------------------------------------- their gradients


def _apply(function: Any, *arguments: Any) -> torch.Tensor:
    result: torch.Tensor = function.apply(*arguments)
    return result


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, axis: Axis) -> torch.Tensor:
        ctx.axis = axis
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return _apply(_Reduce, gradient, ctx.axis), None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, axis: Axis) -> torch.Tensor:
        ctx.axis = axis
        return _reduce(x, axis)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return _apply(_Copy, gradient, ctx.axis), None


class _Part(torch.autograd.Function):
    """A rank's part of a whole tensor or, if `summed`, of the ranks' sum."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, axis: Axis, dim: int, sizes: Any, summed: bool
    ) -> torch.Tensor:
        ctx.arguments = axis, dim, sizes, summed
        return (_reduce_scatter if summed else _own)(x, axis, dim, sizes)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return _apply(_Gather, gradient, *ctx.arguments), None, None, None, None


class _Gather(torch.autograd.Function):
    """The joined parts. The gradients of the whole are equal on all ranks, or `summed`."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, axis: Axis, dim: int, sizes: Any, summed: bool
    ) -> torch.Tensor:
        whole, sizes = _gather(x, axis, dim, sizes)
        ctx.arguments = axis, dim, sizes, summed
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return _apply(_Part, gradient, *ctx.arguments), None, None, None, None


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, axis: Axis, scatter_dim: int, gather_dim: int, to: Any, of: Any
    ) -> torch.Tensor:
        exchanged, of = _exchange(x, axis, scatter_dim, gather_dim, to, of)
        ctx.arguments = axis, gather_dim, scatter_dim, of, to
        return exchanged

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return _apply(_AllToAll, gradient, *ctx.arguments), None, None, None, None, None


# ---------------------------------------------------------------- arguments


def _dim(x: torch.Tensor, dim: int, axis: Axis, what: str) -> int:
    if not -x.dim() <= dim < x.dim():
        raise ValueError(f"{what} on axis {axis.name}: {tuple(x.shape)} has no dimension {dim}")
    return dim % x.dim()


def _whole_sizes(x: torch.Tensor, dim: int, axis: Axis, sizes: Sizes, what: str) -> tuple[int, ...]:
    """Return each rank's size along a dimension; raise ValueError if the sum is wrong."""
    if sizes is None:
        return split_sizes(x.shape[dim], axis.size)
    if len(sizes) != axis.size or sum(sizes) != x.shape[dim] or min(sizes) < 0:
        raise ValueError(
            f"{what} on axis {axis.name}: dimension {dim} of {tuple(x.shape)} cannot be divided "
            f"into {list(sizes)} for {axis.size} ranks"
        )
    return tuple(sizes)


def _part_sizes(
    x: torch.Tensor, dim: int, axis: Axis, sizes: Sizes, what: str
) -> tuple[int, ...] | None:
    """Return each rank's size along a dimension; raise ValueError if this rank's is different."""
    if sizes is None:
        return None
    if len(sizes) != axis.size or sizes[axis.rank] != x.shape[dim]:
        raise ValueError(
            f"{what} on axis {axis.name}: rank {axis.rank} has {x.shape[dim]} of dimension {dim}, "
            f"which contradicts the sizes {list(sizes)} for {axis.size} ranks"
        )
    return tuple(sizes)
