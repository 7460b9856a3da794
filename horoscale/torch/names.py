"""Unique names for an optimizer's operations."""

from __future__ import annotations

from collections import Counter

from horoscale.common import job
from horoscale.common.process_sets import ProcessSet, at_removal

_used: Counter[tuple[int | None, str]] = Counter()  # by process set
job.at_end(_used.clear)


def unique_name(name: str, process_set: ProcessSet) -> str:
    """Return a name that no other optimizer's operation uses on the process set.

    Models may have parameters of the same name. All ranks create their optimizers in the same
    order.
    """
    key = process_set.process_set_id, name
    _used[key] += 1
    return name if _used[key] == 1 else f"{name}#{_used[key]}"


def _forget_names(set_id: int) -> None:
    # The next set with this id has other ranks, whose names may differ.
    for key in [key for key in _used if key[0] == set_id]:
        del _used[key]


at_removal(_forget_names)
