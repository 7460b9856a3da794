"""The process sets of groups, including those created for groups.

The latter are registered by their members only, one per group.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.distributed import ProcessGroup

from horoscale.common import job
from horoscale.common.process_sets import (
    ProcessSet,
    add_process_set,
    at_removal,
    give_up_process_set,
)

groups: dict[int, ProcessGroup] = {}  # by set id, until they are destroyed
_in_use: dict[int, ProcessSet] = {}  # by id
job.at_end(groups.clear)
job.at_end(_in_use.clear)


def _forget(set_id: int) -> None:
    groups.pop(set_id, None)


at_removal(_forget)


def make(members: Sequence[int]) -> ProcessSet:
    """Return a new process set of these global ranks in this order. All of them call it.

    Any number of groups may have the same ranks; their operations do not match each other.
    """
    ordered = list(members) != sorted(members)
    given = ProcessSet(members, distinct=True, ordered=ordered)
    process_set = add_process_set(given, members_only=True)
    assert process_set.process_set_id is not None
    _in_use[process_set.process_set_id] = process_set
    return process_set


def give_up(process_set: ProcessSet, *, abandon: bool = False) -> None:
    """Release a group's set without waiting. It is removed when all members have released it.

    With `abandon`, pending operations fail on all members, instead of keeping the set.
    """
    if process_set.process_set_id:
        _in_use.pop(process_set.process_set_id, None)
        give_up_process_set(process_set, abandon=abandon)


def give_up_all() -> None:
    """Release the sets of all groups, including those that torch.distributed does not know."""
    for process_set in list(_in_use.values()):
        give_up(process_set)
