"""The public rooted collectives: reduce, gather and scatter.

On ranks other than the root, reduce and gather return None. If autograd records the operation, they
return an empty tensor, through which the rank takes part in the backward pass: for example, add its
sum to the loss.

Under torch.compile, these calls break the graph.
"""

from __future__ import annotations

import torch

from horoscale.common.arguments import ELEMENTWISE, resolve_op
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

    The gradient on every rank is that of the root, divided by the number of ranks for Average.

    Args:
        tensor: must have the same shape and dtype on all ranks.
        root_rank: the global rank that gets the result, even in a process set.
        op: as in allreduce(); Average by default.
        name: identifies this operation among pending ones. None: matched by call order.
        prescale_factor: factor applied to each rank's tensor before the reduction.
        postscale_factor: factor applied to the result.
        process_set: the ranks that take part.
        priority: higher is more urgent.

    Returns:
        On the root, a new tensor with the same values as from allreduce(). On other ranks None or,
        if the tensor requires a gradient, a tensor of shape (0,), whose backward() must be run,
        too.

    Raises:
        ValueError: an argument is invalid (such as a root outside the process set), or hvd.init()
            was not called.
        MismatchError: the ranks' calls do not match; raised on all of them.
        HorovodInternalError: the operation failed; RankFailedError if a rank did.
    """
    reduction = Reduction(resolve_op(op, allowed=ELEMENTWISE), prescale_factor, postscale_factor)
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
    """Start reduce() and return a handle immediately.

    Do not modify the tensor until the operation has completed.
    """
    reduction = Reduction(resolve_op(op, allowed=ELEMENTWISE), prescale_factor, postscale_factor)
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
    """Run reduce() in place. Not differentiable.

    Returns:
        On the root, the tensor, which contains the result. On other ranks None; the tensor is
        unchanged.
    """
    reduction = Reduction(resolve_op(op, allowed=ELEMENTWISE), prescale_factor, postscale_factor)
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
    """Start reduce_() and return a handle. The tensor is ready after synchronize()."""
    reduction = Reduction(resolve_op(op, allowed=ELEMENTWISE), prescale_factor, postscale_factor)
    call = Call(name, process_set, priority=priority)
    return collectives.reduce(tensor, root_rank, reduction, call, in_place=True)


@outside_graph
def gather(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | None:
    """Concatenate the ranks' tensors along the first dimension, on the root. Differentiable.

    The gradient of this rank's rows is that of the root for these rows.

    Args:
        tensor: has the same dtype and shape on all ranks, except for the first dimension, which may
            differ and may be 0. Not 0-d.
        root_rank: the global rank that gets the result, even in a process set.
        name: identifies this operation among pending ones. None: matched by call order.
        process_set: the ranks that take part.

    Returns:
        On the root, a new tensor with the rows of rank 0, rank 1, and so on. On other ranks None
        or, if the tensor requires a gradient, a tensor without rows, whose backward() must be run,
        too.

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
    """Start gather() and return a handle immediately.

    Do not modify the tensor until the operation has completed.
    """
    return collectives.gather(tensor, root_rank, Call(name, process_set))


@outside_graph
def scatter(
    tensor: torch.Tensor,
    root_rank: int,
    splits: Splits = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Distribute the rows of the root's tensor to the ranks, in order. Differentiable.

    The gradient of the root's rows comes from the ranks that received them. On other ranks it is
    zero.

    Args:
        tensor: must have the same dtype and shape on all ranks, except for the first dimension. On
            ranks other than the root its rows are ignored, and there may be none. Not 0-d. It must
            require a gradient on all ranks or on none.
        root_rank: the global rank of the sender, even in a process set.
        splits: the number of rows for each rank, in any form that alltoall() takes. Rows beyond
            their sum are not sent. Read on the root only. None: the rows are divided evenly, and
            the lower ranks get the remainder, one row each.
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
    """Start scatter() and return a handle immediately.

    Do not modify the tensor until the operation has completed.
    """
    call = Call(name, process_set)
    return collectives.scatter(tensor, root_rank, split_list(splits), call)
