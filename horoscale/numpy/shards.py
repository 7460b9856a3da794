"""Arrays that are sharded over the members of a process set (see horoscale.common.shards)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from horoscale.common.arguments import extents_of
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.common.shards import Shards, allocate, check_rows
from horoscale.numpy.arrays import Array, adopt, data_type
from horoscale.numpy.movement import allgather


def empty_sharded(
    *size: int | Sequence[int],
    dtype: DTypeLike = np.float32,
    process_set: ProcessSet = global_process_set,
) -> Shards[Array]:
    """Return an array of zeros whose rows are divided equally among the members of a process set.

    Collective. Each member writes its own rows in shared memory, and can read all rows after
    `gather()`. If the members are on one host and each member's rows occupy whole pages (4 KiB on
    most machines), nothing is copied, and `gather()` costs no more than a barrier.

        shards = hvd.empty_sharded(1 << 20)
        shards.own[:] = ...
        everything = shards.gather()

    Args:
        *size: the shape of the whole array, as numbers or as one sequence.
        dtype: the element type.
        process_set: the ranks that take part.

    Raises:
        ValueError: before hvd.init(), or an extent is negative, or there is no first extent or it
            is not divisible by the number of members, or the dtype is not supported.
        MismatchError: the members request different sizes; raised on all of them.
        HorovodInternalError: there is not enough memory, or a member failed.
    """
    shape = extents_of(size[0] if len(size) == 1 else size)
    element = np.dtype(dtype)
    data_type(element)
    if not shape:
        raise ValueError("empty_sharded() needs rows to divide: its shape is ()")
    rows = check_rows(shape[0], process_set)
    memory = allocate(rows * math.prod(shape[1:]) * element.itemsize, process_set)
    own = adopt(memory.own, element, (rows, *shape[1:]))
    whole = (
        np.zeros(shape, element) if memory.joined is None else adopt(memory.joined, element, shape)
    )
    return Shards(
        own, whole, memory, process_set, lambda: allgather(own, process_set=process_set, out=whole)
    )
