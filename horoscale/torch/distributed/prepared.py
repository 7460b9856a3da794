"""The fast path for repeated operations of groups: one library call each.

Preparing a call in the general way takes longer than a small operation. Each function returns a
template that runs the operation on memory at two addresses, or None if this is not enough: for
tensors with gaps, several tensors, or bytes instead of elements.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch.distributed import ReduceOp as TorchOp

from horoscale._core import OpKind, Signature, Template
from horoscale.common.job import current_runtime
from horoscale.torch.distributed.operators import reduction
from horoscale.torch.distributed.places import is_object
from horoscale.torch.tensors import data_type, is_plain, knows


def allreduce(set_id: int, tensor: torch.Tensor, op: Any) -> Template | None:
    """Return the template of an in-place allreduce with an operator of torch.distributed."""
    if not is_plain(tensor):
        return None
    operator = getattr(op, "op", op)
    key = OpKind.ALLREDUCE, operator, set_id, tensor.dtype, tensor.numel()
    return _find(key) or _prepare_reduction(key, OpKind.ALLREDUCE, set_id, tensor, op)


def broadcast(set_id: int, tensor: torch.Tensor, root: int) -> Template | None:
    """Return the template of a broadcast from a global rank."""
    if not is_plain(tensor):
        return None
    key = OpKind.BROADCAST, root, set_id, tensor.dtype, tensor.numel()
    template = _find(key)
    if template is None and knows(tensor.dtype):
        described = ((data_type(tensor.dtype), (tensor.numel(),)),)
        sealed = is_object(tensor)
        signature = Signature(
            OpKind.BROADCAST, described, process_set=set_id, root=root, sealed=sealed
        )
        template = current_runtime().prepare(key, signature)
    return template


def allgather(set_id: int, size: int, output: torch.Tensor, given: torch.Tensor) -> Template | None:
    """Return the template of an allgather into a single tensor."""
    if not _fit(output, given, 1, size):
        return None
    key = OpKind.ALLGATHER, size, set_id, given.dtype, given.numel()
    template = _find(key)
    if template is None and knows(given.dtype):
        # As one row, because others may send more rows, but none of another size.
        described = ((data_type(given.dtype), (1, given.numel())),)
        signature = Signature(
            OpKind.ALLGATHER, described, process_set=set_id, sealed=is_object(given)
        )
        template = current_runtime().prepare(key, signature, size)
    return template


def reduce_scatter(
    set_id: int, size: int, output: torch.Tensor, given: torch.Tensor, op: Any
) -> Template | None:
    """Return the template of a reduce-scatter of a single tensor in equal parts."""
    if not _fit(output, given, size, 1):
        return None
    operator = getattr(op, "op", op)
    key = OpKind.REDUCESCATTER, operator, set_id, given.dtype, given.numel()
    return _find(key) or _prepare_reduction(key, OpKind.REDUCESCATTER, set_id, given, op)


def _fit(output: torch.Tensor, given: torch.Tensor, outputs: int, inputs: int) -> bool:
    """Return whether `outputs` outputs have as many elements as `inputs` inputs, and not zero."""
    elements = given.numel() * inputs
    return (
        is_plain(output)
        and is_plain(given)
        and output.dtype is given.dtype
        and 0 < elements == output.numel() * outputs
    )


def _find(key: Hashable) -> Template | None:
    templates = current_runtime().templates
    return templates.recent.get(key) or templates.find(key)


def _prepare_reduction(
    key: Hashable, kind: OpKind, set_id: int, tensor: torch.Tensor, op: Any
) -> Template | None:
    if getattr(op, "op", op) == TorchOp.PREMUL_SUM or not knows(tensor.dtype):
        return None  # the factor may differ between calls
    how = reduction(op, tensor.dtype)
    described = ((data_type(tensor.dtype), (tensor.numel(),)),)
    signature = Signature(kind, described, process_set=set_id, reduce_op=how.op)
    return current_runtime().prepare(key, signature)
