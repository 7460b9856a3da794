"""The process sets of groups: made by their members alone, and one for each group."""

from __future__ import annotations

from collections.abc import Sequence

from horoscale.common.process_sets import ProcessSet, add_process_set, give_up_process_set


def make(members: Sequence[int]) -> ProcessSet:
    """Return a new process set of these global ranks in this order. They all call it.

    There may be any number of groups of the same ranks, which don't meet each other's operations.
    """
    ordered = list(members) != sorted(members)
    return add_process_set(ProcessSet(members, distinct=True, ordered=ordered), members_only=True)


def give_up(process_set: ProcessSet) -> None:
    """Give up a group's set. It is removed once all members have: nobody waits for that here."""
    if process_set.process_set_id:
        give_up_process_set(process_set)
