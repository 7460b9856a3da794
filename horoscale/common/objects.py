"""Broadcast and allgather of picklable objects.

Unpickling runs code. The bytes come only from ranks of the job, which have proved that they know
its secret. Data modified between hosts is not unpickled (docs/security.md).
"""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle

from horoscale.common.arguments import check_root, members_of, set_id
from horoscale.common.job import current_runtime
from horoscale.common.payloads import allgather_bytes, broadcast_bytes
from horoscale.common.process_sets import ProcessSet, global_process_set


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the root's object on every rank. The root also gets an unpickled copy.

    Args:
        obj: any object that cloudpickle can serialize; ignored on ranks other than the root.
        root_rank: the global rank of the sender.
        name: identifies this call among pending ones. None: matched by call order.
        process_set: the ranks that take part.

    Raises:
        ValueError: before hvd.init(), or root or process set are invalid.
        HorovodInternalError: a rank failed, or the ranks' calls do not match.
    """
    runtime = current_runtime()
    identity = set_id(process_set)
    root = check_root(root_rank, process_set)
    payload = cloudpickle.dumps(obj) if runtime.topology.rank == root else None
    return pickle.loads(broadcast_bytes(runtime, payload, root, name, identity))


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Return the objects of all ranks in rank order. All of them are unpickled copies.

    Args:
        obj: any object that cloudpickle can serialize.
        name: identifies this call among pending ones. None: matched by call order.
        process_set: the ranks that take part.

    Raises:
        ValueError: before hvd.init(), or the process set is invalid.
        HorovodInternalError: a rank failed, or the ranks' calls do not match.
    """
    runtime = current_runtime()
    identity = set_id(process_set)
    members = len(members_of(process_set))
    payloads = allgather_bytes(runtime, cloudpickle.dumps(obj), members, name, identity)
    return [pickle.loads(payload) for payload in payloads]
