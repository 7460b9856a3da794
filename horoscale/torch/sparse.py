"""Allreduce of sparse tensors, as an allgather of their indices and values."""

from __future__ import annotations

import torch

from horoscale._core import ReduceOp
from horoscale.common import Average
from horoscale.common.arguments import SUMS, members_of, resolve_op
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.torch import collectives
from horoscale.torch.collectives import Call, Tensors
from horoscale.torch.compiling import outside_graph
from horoscale.torch.handles import Handle


@outside_graph
def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    priority: int = 0,
) -> Handle:
    """Start an allreduce of a sparse COO tensor and return immediately.

    Each rank may contribute any number of indices, which may repeat. Not differentiable.

    Args:
        tensor: a tensor with layout torch.sparse_coo. Must have the same shape, dtype and number of
            sparse dimensions on all ranks.
        name: identifies this operation among pending ones. None: matched by call order.
        op: Average or Sum. Averages of integers are floating-point numbers.
        process_set: the ranks that take part.
        priority: higher is more urgent.

    Returns:
        A handle for poll() and synchronize(). The result is a new sparse tensor, not coalesced.
        Calling the handle is the same as synchronize().

    Raises:
        ValueError: the tensor is not sparse COO, or another argument is invalid.
    """
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.sparse_coo:
        raise ValueError("sparse_allreduce_async() takes a tensor in torch.sparse_coo layout")
    reduce_op = resolve_op(op, allowed=SUMS)
    tensor = tensor.detach()
    by_element = tensor._indices().t()  # one row per element, to gather along the first dimension

    def assemble(gathered: Tensors) -> torch.Tensor:
        indices, values = gathered
        if reduce_op is ReduceOp.AVERAGE:
            members = len(members_of(process_set))
            values = values.div(members)
        # Checked, because a rank with another shape may send indices that are out of bounds here.
        return torch.sparse_coo_tensor(indices.t(), values, tensor.shape, check_invariants=True)

    call = Call(name, process_set, priority=priority)
    return collectives.allgather([by_element, tensor._values()], call).then(assemble)
