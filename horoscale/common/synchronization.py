"""Collectives without data: barrier and join."""

from __future__ import annotations

from horoscale._core import OpKind
from horoscale.common.arguments import set_id
from horoscale.common.job import current_runtime, joined
from horoscale.common.process_sets import ProcessSet, global_process_set


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until every rank of the process set has called this.

    Raises ValueError before hvd.init() or for an invalid set, HorovodInternalError if a rank fails.
    """
    identity = set_id(process_set)
    current_runtime().enqueue(OpKind.BARRIER, process_set=identity, will_wait=True).wait()


def join() -> int:
    """Signal that this rank has no more data, and wait until every rank has joined.

    Until then, the other ranks reduce without this rank. Average still divides by the number of all
    ranks (see JOIN_AVERAGE in docs/configuration.md). Operations that need this rank, such as
    allgather, raise HorovodInternalError on the other ranks.

    Returns the rank that joined last. Raises ValueError before hvd.init(), HorovodInternalError if
    a rank fails.
    """
    handle = current_runtime().enqueue(OpKind.JOIN, will_wait=True)
    handle.wait()
    joined()
    return handle.result()
