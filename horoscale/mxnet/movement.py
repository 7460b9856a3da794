"""Operations that move values between ranks: allgather, broadcast, alltoall."""

from __future__ import annotations

from array import array as numbers
from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np

from horoscale._core import DataType, OpKind, Signature, TensorArg, address_of
from horoscale.common.arguments import (
    check_even_split,
    check_root,
    check_splits,
    members_of,
    set_id,
)
from horoscale.common.job import current_runtime
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.mxnet.arrays import check_arrays, check_rows, new_like, tensors_of
from horoscale.mxnet.engine import name_of, push, push_gather
from horoscale.mxnet.errors import InvalidArgumentError


def allgather(
    tensor: Any,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Concatenate the ranks' arrays along the first dimension, on every rank.

    The call waits until all ranks have called it, because the result's shape depends on them. The
    values arrive later.

    Args:
        tensor: an NDArray with the same dtype and shape on all ranks, except for the first
            dimension, which may differ and may be 0. Not 0-d.
        name: as for allreduce().
        priority: as for allreduce().
        process_set: the ranks that take part.

    Returns:
        A new array with the rows of rank 0, rank 1, and so on.

    Raises:
        ValueError, TypeError, MXNetError: as in allreduce().
        HorovodInternalError: a rank failed before all had called.
    """
    return grouped_allgather([tensor], name, priority, process_set)[0]


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Run allgather() on several arrays, all or none of them. Returns the list of results."""
    arrays = check_arrays(tensors)
    identity = set_id(process_set)
    for array in arrays:
        check_rows(array, "allgather")
    members = len(members_of(process_set))
    own_name = name_of("allgather", name, identity)
    rows = _gathered([array.shape[0] for array in arrays], members, f"{own_name}.rows", identity)
    totals = [sum(rows[i :: len(arrays)]) for i in range(len(arrays))]
    results = [new_like(array, total) for array, total in zip(arrays, totals, strict=True)]
    signature = Signature(
        OpKind.ALLGATHER, tensors_of(arrays), own_name, identity, priority=priority
    )
    push_gather(signature, arrays, results)
    return results


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send the root's array to all ranks.

    Args:
        tensor: an NDArray with the same shape and dtype on all ranks. Only the root's values are
            read.
        root_rank: the global rank of the sender.
        name: as for allreduce().
        priority: as for allreduce().
        process_set: the ranks that take part.

    Returns:
        A new array with the root's values.

    Raises:
        ValueError, TypeError, MXNetError: as in allreduce().
    """
    [array] = check_arrays([tensor])
    result = new_like(array)
    _broadcast(array, result, root_rank, name, priority, process_set)
    return result


def broadcast_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Run broadcast() in place and return the array. Errors are those of broadcast()."""
    [array] = check_arrays([tensor])
    _broadcast(array, array, root_rank, name, priority, process_set)
    return array


def _broadcast(
    source: Any,
    target: Any,
    root_rank: int,
    name: str | None,
    priority: int,
    process_set: ProcessSet,
) -> None:
    identity = set_id(process_set)
    signature = Signature(
        OpKind.BROADCAST,
        tensors_of([source]),
        name_of("broadcast", name, identity),
        identity,
        root=check_root(root_rank, process_set),
        priority=priority,
    )
    push(signature, [source], [target])


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send some rows of an array to each rank, and receive rows from each.

    The call waits until all ranks have called it, like allgather().

    Args:
        tensor: the rows for rank 0, rank 1, and so on. Not 0-d.
        splits: integers, the number of rows for each rank, as an NDArray or a list. Rows beyond
            their sum are not sent. None: the rows are divided evenly.
        name: as for allreduce().
        priority: as for allreduce().
        process_set: the ranks that take part.

    Returns:
        The rows from rank 0, rank 1, and so on. With `splits`, also the number of rows from each,
        as an int32 NDArray.

    Raises:
        ValueError, TypeError, MXNetError, HorovodInternalError: as in allgather(). Invalid `splits`
            raise InvalidArgumentError, which is both a ValueError and an MXNetError.
    """
    [array] = check_arrays([tensor])
    identity = set_id(process_set)
    check_rows(array, "alltoall")
    members = len(members_of(process_set))
    try:
        if splits is None:
            check_even_split(array.shape[0], process_set)
            sent = [array.shape[0] // members] * members
        else:
            given = splits.asnumpy() if isinstance(splits, mx.nd.NDArray) else splits
            sent = check_splits(list(given), array.shape[0], process_set)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(str(error)) from None
    own_name = name_of("alltoall", name, identity)
    everybodys = _gathered(sent, members, f"{own_name}.rows", identity)
    position = members_of(process_set).index(current_runtime().topology.rank)
    received = everybodys[position::members]
    result = new_like(array, sum(received))
    signature = Signature(
        OpKind.ALLTOALL,
        tensors_of([array]),
        own_name,
        identity,
        splits=tuple(sent),
        priority=priority,
    )
    push_gather(signature, [array], [result])
    if splits is None:
        return result
    make = mx.np if isinstance(array, mx.np.ndarray) else mx.nd
    return result, make.array(received, dtype=np.int32)


def _gathered(values: Sequence[int], members: int, name: str, process_set: int) -> list[int]:
    """Return the integers of all ranks, in rank order. Waits for the ranks."""
    own = numbers("q", values)
    everybodys = numbers("q", [0] * (members * len(own)))
    tensor = TensorArg(
        address_of(own), address_of(everybodys), DataType.INT64, (1, len(own)), members
    )
    current_runtime().enqueue(
        OpKind.ALLGATHER,
        tensors=[tensor],
        name=name,
        process_set=process_set,
        will_wait=True,
        keep_alive=(own, everybodys),
    ).wait()
    return list(everybodys)
