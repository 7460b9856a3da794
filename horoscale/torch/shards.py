"""Tensors that are sharded over the members of a process set (see horoscale.common.shards)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from horoscale.common.arguments import extents_of
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.common.shards import Shards, allocate, check_rows
from horoscale.torch.movement import allgather
from horoscale.torch.tensors import adopt, data_type


def empty_sharded(
    *size: int | Sequence[int],
    dtype: torch.dtype | None = None,
    process_set: ProcessSet = global_process_set,
) -> Shards[torch.Tensor]:
    """Return a tensor of zeros whose rows are divided equally among the members of a process set.

    Collective. Each member writes its own rows in shared memory, and can read all rows after
    `gather()`. If the members are on one host and each member's rows occupy whole pages (4 KiB on
    most machines), nothing is copied, and `gather()` costs no more than a barrier. Autograd does
    not track writes by other members: use the tensor under torch.no_grad() or as the data of
    parameters.

        shards = hvd.empty_sharded(1 << 20)
        shards.own.copy_(...)
        everything = shards.gather()

    Args:
        *size: the shape of the whole tensor, as numbers or as one sequence.
        dtype: the element type. None: torch's default dtype.
        process_set: the ranks that take part.

    Raises:
        ValueError: before hvd.init(), or an extent is negative, or there is no first extent or it
            is not divisible by the number of members, or the dtype is not supported.
        MismatchError: the members request different sizes; raised on all of them.
        HorovodInternalError: there is not enough memory, or a member failed.
    """
    shape = torch.Size(extents_of(size[0] if len(size) == 1 else size))
    dtype = dtype or torch.get_default_dtype()
    data_type(dtype)
    if not shape:
        raise ValueError("empty_sharded() needs rows to divide, but its shape is ()")
    rows = check_rows(shape[0], process_set)
    part = torch.Size((rows, *shape[1:]))
    memory = allocate(part.numel() * dtype.itemsize, process_set)
    own = adopt(memory.own, dtype, part)
    whole = (
        torch.zeros(shape, dtype=dtype)
        if memory.joined is None
        else adopt(memory.joined, dtype, shape)
    )
    return Shards(
        own, whole, memory, process_set, lambda: allgather(own, process_set=process_set, out=whole)
    )
