"""Tensors that are divided among the members of a set, each of which sees all of them.

On one host the members map each other's parts side by side, so that to gather them moves nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from horoscale._core import HorovodInternalError, JoinedBuffer, OwnedBuffer
from horoscale.common import job
from horoscale.common.arguments import members_of, set_id
from horoscale.common.exceptions import MismatchError
from horoscale.common.payloads import allgather_bytes
from horoscale.common.process_sets import ProcessSet
from horoscale.common.synchronization import barrier

T = TypeVar("T")
_SAID = struct.Struct("qq")  # where a shard lies, and its bytes
_REFUSED = -2  # instead of where it lies; -1: in memory that others can't reach

# Shards that other members see. They are freed when no member can see them any more.
_seen_by_others: dict[int, OwnedBuffer] = {}
job.at_end(_seen_by_others.clear)


class Memory(NamedTuple):
    """What the members of a set have allocated together."""

    own: OwnedBuffer
    joined: JoinedBuffer | None  # None: this rank can't see all members' memory


class Shards(Generic[T]):
    """A tensor whose rows are divided equally among the members of a process set.

    Made by hvd.empty_sharded().

    Attributes:
        own: this rank's rows. Only they may be written.
        whole: the rows of all members, in the order of the set, as gather() has left them.
        is_view: whether `whole` is the members' own memory, on one host; `own` is a part of it
            then, and what a member writes may be seen at once. Otherwise gather() copies.
        process_set: the set.
    """

    def __init__(
        self,
        own: T,
        whole: T,
        memory: Memory,
        process_set: ProcessSet,
        copy: Callable[[], object],
    ) -> None:
        """Tie what the bindings made of the memory; `copy` gathers where it isn't joined."""
        self.own = own
        self.whole = whole
        self.process_set = process_set
        self._memory: Memory | None = memory
        self._copy = copy

    @property
    def is_view(self) -> bool:
        """Whether gather() copies nothing."""
        return self._memory is not None and self._memory.joined is not None

    def gather(self) -> T:
        """Return `whole` with what all members have written before they called this. Collective.

        Where `is_view`, a member that goes on to write its rows changes what the others see: let
        them finish reading first, by hvd.barrier() or whatever they send after it.

        Raises ValueError after close(), HorovodInternalError if a member fails.
        """
        if self._memory is None:
            raise ValueError("these shards are closed")
        if self._memory.joined is None:
            self._copy()
        else:
            barrier(self.process_set)
        return self.whole

    def close(self) -> None:
        """Give the memory back. Collective: all members call it. Later calls do nothing.

        `own` is valid for as long as it is used; `whole` reads as zeros where `is_view`. Without
        this call the memory is kept until hvd.shutdown(), because other members may look at it.

        Raises HorovodInternalError if a member fails; the memory is kept then.
        """
        if self._memory is None:
            return
        own, joined = self._memory
        if joined is not None:
            barrier(self.process_set)
            joined.leave()
        self._memory = None
        _seen_by_others.pop(own.pointer, None)


def allocate(nbytes: int, process_set: ProcessSet) -> Memory:
    """Allocate `nbytes` on each member of the set, and join them if that is possible. Collective.

    Raises, on all members, MismatchError where they ask for different sizes, HorovodInternalError
    where one of them has not got its memory.
    """
    runtime = job.current_runtime()
    identity = set_id(process_set)
    members = members_of(process_set)
    own: OwnedBuffer | HorovodInternalError
    try:
        own = runtime.shared_alloc(nbytes)
        said = _SAID.pack(runtime.shared_offset(own), nbytes)
    except HorovodInternalError as error:  # the others wait to hear of it
        own, said = error, _SAID.pack(_REFUSED, nbytes)
    heard = [
        _SAID.unpack(one) for one in allgather_bytes(runtime, said, len(members), None, identity)
    ]
    for rank, (_, other) in zip(members, heard, strict=True):
        if other != heard[0][1]:
            raise MismatchError(
                f"shards differ in size: rank {members[0]} has {heard[0][1]} bytes, "
                f"rank {rank} has {other}"
            )
    if isinstance(own, HorovodInternalError):
        raise own
    without = [rank for rank, (offset, _) in zip(members, heard, strict=True) if offset == _REFUSED]
    if without:
        raise HorovodInternalError(
            f"rank {without[0]} could not allocate its {nbytes} bytes of the shards"
        )
    try:
        joined = runtime.shared_join(members, [offset for offset, _ in heard], nbytes)
    except (ValueError, HorovodInternalError):  # another host, pieces of pages, no address space
        joined = None
    verdicts = allgather_bytes(runtime, bytes([joined is not None]), len(members), None, identity)
    if b"\0" in verdicts:
        return Memory(own, None)
    _seen_by_others[own.pointer] = own
    return Memory(own, joined)


def check_rows(rows: int, process_set: ProcessSet) -> int:
    """Return each member's share of the rows; raise ValueError unless they are equal."""
    members = len(members_of(process_set))
    if rows % members:
        raise ValueError(
            f"{rows} rows can't be divided equally among the {members} ranks of {process_set}"
        )
    return rows // members
