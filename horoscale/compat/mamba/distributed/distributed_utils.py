"""mamba_ssm.distributed.distributed_utils: collectives along the first dimension.

Their gradients are those of a single process: that of all_gather is a reduce_scatter, and so on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from horoscale._core import ReduceOp
from horoscale.torch.functions import broadcast_parameters
from horoscale.torch.handles import Handle
from horoscale.torch.movement import allgather_async
from horoscale.torch.parallel import (
    Axis,
    get_dim_for_local_rank,
    reduce_from,
    reduce_gradients,
    sequence_gather,
    sequence_reduce_scatter,
    start_reduce,
)
from horoscale.torch.parallel.regions import Ready
from horoscale.torch.reductions import reducescatter_async


def all_gather_raw(
    input_: torch.Tensor, process_group: Any, async_op: bool = False
) -> tuple[torch.Tensor, Any]:
    """Return (the ranks' rows, None), without a gradient. Ranks must have equal numbers of rows.

    With `async_op` the second item is a handle; the rows are valid after its wait().
    """
    axis = Axis.of(process_group)
    if axis.set is None:
        return _outcome(input_, Ready(input_), async_op)
    rows = input_.detach().contiguous()
    out = rows.new_empty((axis.size * rows.shape[0], *rows.shape[1:]))
    return _outcome(out, allgather_async(rows, process_set=axis.set, out=out), async_op)


def reduce_scatter_raw(
    input_: torch.Tensor, process_group: Any, async_op: bool = False
) -> tuple[torch.Tensor, Any]:
    """Return (this rank's rows of the sum, None), without a gradient; see all_gather_raw()."""
    axis = Axis.of(process_group)
    if input_.shape[0] % axis.size:
        raise ValueError(f"{input_.shape[0]} rows can't be divided among {axis.size} ranks")
    if axis.set is None:
        return _outcome(input_, Ready(input_), async_op)
    rows = input_.detach().contiguous()
    out = rows.new_empty((rows.shape[0] // axis.size, *rows.shape[1:]))
    handle = reducescatter_async(rows, op=ReduceOp.SUM, process_set=axis.set, out=out)
    return _outcome(out, handle, async_op)


def all_reduce_raw(
    input_: torch.Tensor, process_group: Any, async_op: bool = False
) -> tuple[torch.Tensor, Any]:
    """Return (the sum, None), in place if the input is contiguous; see all_gather_raw()."""
    rows = input_.detach().contiguous()
    return _outcome(rows, start_reduce(rows, Axis.of(process_group)), async_op)


def _outcome(
    out: torch.Tensor, handle: Handle | Ready, async_op: bool
) -> tuple[torch.Tensor, Handle | Ready | None]:
    if async_op:
        return out, handle
    handle.wait()
    return out, None


def all_gather(input_: torch.Tensor, process_group: Any) -> torch.Tensor:
    """Return the ranks' rows. The gradient is reduced and scattered."""
    return sequence_gather(input_, Axis.of(process_group))


def reduce_scatter(input_: torch.Tensor, process_group: Any) -> torch.Tensor:
    """Return this rank's rows of the sum. The gradients are gathered."""
    return sequence_reduce_scatter(input_, Axis.of(process_group))


def all_reduce(input_: torch.Tensor, process_group: Any) -> torch.Tensor:
    """Return the sum. The gradient is the rank's own."""
    return reduce_from(input_, Axis.of(process_group))


def sync_shared_params(model: nn.Module, process_group: Any) -> None:
    """Broadcast parameters that are marked `_shared_params` from the first rank to all."""
    axis = Axis.of(process_group)
    marked = [
        pair
        for pair in sorted(model.named_parameters(), key=lambda pair: pair[0])
        if getattr(pair[1], "_shared_params", False)
    ]
    if axis.set is not None and marked:
        with torch.no_grad():
            broadcast_parameters(
                [(name, value.data) for name, value in marked], axis.ranks[0], axis.set
            )


def allreduce_sequence_parallel_grad(model: nn.Module, process_group: Any) -> None:
    """Sum the gradients of parameters that are marked `_sequence_parallel`, in place."""
    marked = [
        value
        for _, value in sorted(model.named_parameters(), key=lambda pair: pair[0])
        if getattr(value, "_sequence_parallel", False)
    ]
    reduce_gradients(marked, Axis.of(process_group))


__all__ = [
    "all_gather",
    "all_gather_raw",
    "all_reduce",
    "all_reduce_raw",
    "allreduce_sequence_parallel_grad",
    "get_dim_for_local_rank",
    "reduce_scatter",
    "reduce_scatter_raw",
    "sync_shared_params",
]
