"""Replacements for functions of torch.distributed that reject unknown backends by name.

The first group of this backend installs replacements that serve its groups and pass all others to
PyTorch's functions. HoroscaleProcessGroup implements what PyTorch lets a group decide itself.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import ProcessGroup, distributed_c10d

from horoscale.torch.distributed.group import HoroscaleProcessGroup
from horoscale.torch.distributed.monitored import monitored_barrier


def _set_pg_timeout(timeout: timedelta, group: ProcessGroup | None = None) -> None:
    """Set the timeout of a group's operations from now on."""
    chosen: Any = group or distributed_c10d._get_default_group()
    chosen.set_timeout(timeout)


def split_group(
    parent_pg: ProcessGroup | None = None,
    split_ranks: Sequence[Sequence[int]] | None = None,
    timeout: timedelta | None = None,
    pg_options: object = None,
    group_desc: str | None = None,
    backend: str | None = None,
) -> ProcessGroup | None:
    """Return the new group of the list of ranks that contains this one, or None if none does.

    All ranks of the parent must call it with the same `split_ranks`: disjoint lists of ranks in the
    parent. The group inherits its parent's timeout unless one is given.
    """
    parent: Any = parent_pg or distributed_c10d._get_default_group()
    every = [rank for part in split_ranks or () for rank in part]
    if not every or not all(split_ranks or ()):
        raise ValueError("split_ranks names no ranks")
    if len(set(every)) != len(every):
        raise ValueError(f"split_ranks={split_ranks} names a rank twice")
    if not set(every) <= set(range(parent.size())):
        raise ValueError(f"split_ranks={split_ranks} of a group of {parent.size()} ranks")
    for part in split_ranks or ():
        if parent.rank() in part:
            group: ProcessGroup = dist.new_group(
                [dist.get_global_rank(parent, rank) for rank in sorted(part)],
                timeout=timeout or parent.timeout,
                backend=dist.get_backend(parent),
                use_local_synchronization=True,
                group_desc=group_desc,
            )
            return group
    return None


def _shutdown_backend(pg: HoroscaleProcessGroup) -> None:
    """Leave a group. Called by destroy_process_group() in PyTorch 2.4; later, shutdown() is."""
    pg.shutdown()


# With the name of the parameter that is the group.
_OURS: dict[Callable[..., Any], str] = {
    monitored_barrier: "group",
    _set_pg_timeout: "group",
    split_group: "parent_pg",
    _shutdown_backend: "pg",
}


def install() -> None:
    """Replace PyTorch's functions, as far as this version has them."""
    for ours, group in _OURS.items():
        theirs = getattr(distributed_c10d, ours.__name__, None)
        if theirs is None or hasattr(theirs, "of_horoscale"):
            continue
        either = _by_group(theirs, ours, group)
        for module in (distributed_c10d, dist):
            if getattr(module, ours.__name__, None) is theirs:
                setattr(module, ours.__name__, either)


def _by_group(
    theirs: Callable[..., Any], ours: Callable[..., Any], name: str
) -> Callable[..., Any]:
    """Return a function that calls `ours` if its argument `name` is our group, or else `theirs`."""
    signature = inspect.signature(theirs)

    @functools.wraps(theirs)
    def either(*args: Any, **kwargs: Any) -> Any:
        group = signature.bind(*args, **kwargs).arguments.get(name)
        if isinstance(group or distributed_c10d.GroupMember.WORLD, HoroscaleProcessGroup):
            return ours(*args, **kwargs)
        return theirs(*args, **kwargs)

    either.of_horoscale = True  # type: ignore[attr-defined]
    return either
