"""Registration of the backend with torch.distributed, and creation of its groups."""

from __future__ import annotations

import contextlib
import inspect
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import ProcessGroup, distributed_c10d
from torch.distributed.rendezvous import register_rendezvous_handler

import horoscale.common as hvd
from horoscale.common import job
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.torch.distributed import functions, joining, sets
from horoscale.torch.distributed.group import HoroscaleProcessGroup
from horoscale.torch.distributed.named_group import NAME


def register() -> None:
    """Make init_process_group("horoscale") create groups of this backend."""
    with contextlib.suppress(RuntimeError):  # it is already registered
        register_rendezvous_handler(NAME, joining.rendezvous)  # type: ignore[no-untyped-call]
    dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu", "cuda"])


def create(options: Any, backend_options: object = None) -> HoroscaleProcessGroup:
    """Create a group: the default one, or one of some ranks, all of which call this.

    `options` are torch.distributed's: its store, the group's ranks and timeout. `backend_options`:
    the process set to use for the group; None: a new one.
    """
    functions.install()
    if isinstance(backend_options, ProcessSet):
        return HoroscaleProcessGroup(backend_options, options.timeout, owns_set=False)
    members = list(options.global_ranks_in_group)
    if not members:
        joining.join(options.store, options.group_rank, options.group_size)
        return HoroscaleProcessGroup(global_process_set, options.timeout, joining.joined_here())
    if not job.is_initialized():
        # The default group has another backend.
        joining.join_world()
    return HoroscaleProcessGroup(sets.make(members), options.timeout)


def process_set(group: ProcessGroup | None = None) -> ProcessSet:
    """Return the process set of a group of this backend, for use with horoscale.torch.

    Args:
        group: the group. None: the default one, whose set is hvd.global_process_set.

    Raises:
        ValueError: the group has another backend.
    """
    chosen = group or distributed_c10d._get_default_group()
    if not isinstance(chosen, HoroscaleProcessGroup):
        raise ValueError(f"{chosen} is no process group of the horoscale backend")
    hvd.current_runtime()  # raises a clearer error if the job was left
    return chosen.process_set


def process_group(process_set: ProcessSet, timeout: timedelta | None = None) -> ProcessGroup:
    """Return the process group of a process set, for use with torch.distributed.

    Raises ValueError if the set is not registered or does not contain this rank, or if
    init_process_group() was not called. See ProcessSet.to_group().
    """
    if not dist.is_initialized():
        raise ValueError("ProcessSet.to_group(): call torch.distributed.init_process_group() first")
    set_id = process_set.process_set_id
    if set_id is None or process_set.ranks is None:
        raise ValueError(f"{process_set} is not registered: see hvd.add_process_set()")
    process_set.rank()  # raises if this process is not in the set
    known = sets.groups.get(set_id)
    if known is not None:
        return known
    options: dict[str, Any] = {"use_local_synchronization": True, "pg_options": process_set}
    if process_set.ranks != sorted(process_set.ranks):
        if "sort_ranks" not in inspect.signature(dist.new_group).parameters:
            raise ValueError(f"{process_set}: this PyTorch sorts the ranks of groups")
        options["sort_ranks"] = False
    group: ProcessGroup = dist.new_group(
        process_set.ranks, timeout=timeout, backend=NAME, **options
    )
    return group
