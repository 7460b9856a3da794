"""The collectives with a root as users call them: reduce, gather and scatter.

What the others than the root get of a reduce or a gather is None. Where autograd records the
operation it is a tensor without elements instead: a rank takes part in the backward pass through
it, for example by the gradient of its sum.

In what torch.compile compiles the graph ends where one of these is called.
"""

from __future__ import annotations

import torch

from horoscale.common.arguments import resolve_op
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.torch import collectives
from horoscale.torch.calls import Splits, split_list
from horoscale.torch.collectives import Call, Reduction
from horoscale.torch.compiling import outside_graph
from horoscale.torch.handles import Handle


@outside_graph
def reduce(
    tensor: torch.Tensor,
    root_rank: int,
    op: int | None = None,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> torch.Tensor | None:
    """Reduce a tensor over the ranks; the root gets the result. Average and Sum have gradients.

    The gradient is the root's; by the number of ranks for Average.

    Args:
        tensor: of one shape and dtype on all ranks.
        root_rank: the global rank that gets the result, even in a process set.
        op: as allreduce(); Average by default.
        name: identifies this operation among pending ones. None: matched by call order.
        prescale_factor: each rank's tensor is multiplied by it before the reduction,
        postscale_factor: and the result by this one.
        process_set: the ranks that take part.
        priority: higher is more urgent.

    Returns:
        On the root a new tensor, with the values that allreduce() gives. Elsewhere None, or, if the
        tensor requires a gradient, a tensor of shape (0,), on which backward() must be called,
        too.

    Raises:
        ValueError: an argument is invalid (such as a root outside the process set), or hvd.init()
            was not called.
        MismatchError: the ranks' calls do not match; raised on all of them.
        HorovodInternalError: the operation failed; RankFailedError if a rank did.
    """
    reduction = Reduction(resolve_op(op), prescale_factor, postscale_factor)
    call = Call(name, process_set, will_wait=True, priority=priority)
    return collectives.reduce(tensor, root_rank, reduction, call).wait()  # type: ignore[no-any-return]


@outside_graph
def reduce_async(
    tensor: torch.Tensor,
    root_rank: int,
    op: int | None = None,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Handle:
    """Start reduce() and return a handle immediately. Do not modify the tensor until then."""
    reduction = Reduction(resolve_op(op), prescale_factor, postscale_factor)
    call = Call(name, process_set, priority=priority)
    return collectives.reduce(tensor, root_rank, reduction, call)


@outside_graph
def reduce_(
    tensor: torch.Tensor,
    root_rank: int,
    op: int | None = None,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> torch.Tensor | None:
    """Do reduce() in place. Not differentiable.

    Returns:
        On the root the tensor, which holds the result; None elsewhere, where it stays as it is.
    """
    reduction = Reduction(resolve_op(op), prescale_factor, postscale_factor)
    call = Call(name, process_set, will_wait=True, priority=priority)
    return collectives.reduce(tensor, root_rank, reduction, call, in_place=True).wait()  # type: ignore[no-any-return]


@outside_graph
def reduce_async_(
    tensor: torch.Tensor,
    root_rank: int,
    op: int | None = None,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Handle:
    """Start reduce_() and return a handle immediately. The result is there after synchronize()."""
    reduction = Reduction(resolve_op(op), prescale_factor, postscale_factor)
    call = Call(name, process_set, priority=priority)
    return collectives.reduce(tensor, root_rank, reduction, call, in_place=True)


@outside_graph
def gather(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | None:
    """Concatenate the ranks' rows on the root. Differentiable.

    The gradient of this rank's rows is the root's for them.

    Args:
        tensor: of one dtype and shape on all ranks, except for the first dimension, which may
            differ and may be 0. Not 0-d.
        root_rank: the global rank that gets the result, even in a process set.
        name: identifies this operation among pending ones. None: matched by call order.
        process_set: the ranks that take part.

    Returns:
        On the root a new tensor with the rows of rank 0, rank 1, and so on. Elsewhere None, or, if
        the tensor requires a gradient, one without rows, on which backward() must be called, too.

    Raises:
        ValueError: an argument is invalid (such as a root outside the process set), or hvd.init()
            was not called.
        MismatchError: roots, dtypes or other dimensions differ; raised on all ranks.
        HorovodInternalError: the operation failed; RankFailedError if a rank did.
    """
    call = Call(name, process_set, will_wait=True)
    return collectives.gather(tensor, root_rank, call).wait()  # type: ignore[no-any-return]


@outside_graph
def gather_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start gather() and return a handle immediately. Do not modify the tensor until then."""
    return collectives.gather(tensor, root_rank, Call(name, process_set))


@outside_graph
def scatter(
    tensor: torch.Tensor,
    root_rank: int,
    splits: Splits = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Deal out the rows of the root's tensor: each rank gets the next ones. Differentiable.

    The gradient of the root's rows is that of the ranks that got them; the others' is zeros.

    Args:
        tensor: of one dtype and shape on all ranks, except for the first dimension: elsewhere than
            on the root its rows don't count and may be none. Not 0-d. If it requires a gradient, it
            does so on all ranks.
        root_rank: the global rank that sends, even in a process set.
        splits: how many rows go to each rank, as alltoall() takes it. Rows beyond their sum stay.
            Read on the root alone. None: evenly, the lower ranks have one more where their number
            doesn't divide.
        name: identifies this operation among pending ones. None: matched by call order.
        process_set: the ranks that take part.

    Returns:
        A new tensor with this rank's rows.

    Raises:
        ValueError: an argument is invalid (such as a root outside the process set), or hvd.init()
            was not called.
        MismatchError: roots, dtypes or other dimensions differ; raised on all ranks.
        HorovodInternalError: the operation failed; RankFailedError if a rank did.
    """
    call = Call(name, process_set, will_wait=True)
    return collectives.scatter(tensor, root_rank, split_list(splits), call).wait()  # type: ignore[no-any-return]


@outside_graph
def scatter_async(
    tensor: torch.Tensor,
    root_rank: int,
    splits: Splits = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start scatter() and return a handle immediately. Do not modify the tensor until then."""
    call = Call(name, process_set)
    return collectives.scatter(tensor, root_rank, split_list(splits), call)
