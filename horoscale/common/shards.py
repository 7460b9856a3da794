"""Tensors that are sharded over the members of a process set, and readable by all of them.

Members on one host map each other's shards side by side, so that gathering moves no data.
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
_SAID = struct.Struct("qq")  # a shard's location and number of bytes
_REFUSED = -2  # in place of the location; -1: memory that others cannot map

# Shards that other members have mapped. They are freed when no member maps them any longer.
_seen_by_others: dict[int, OwnedBuffer] = {}
job.at_end(_seen_by_others.clear)


class Memory(NamedTuple):
    """Memory that the members of a set have allocated together."""

    own: OwnedBuffer
    joined: JoinedBuffer | None  # None: this rank cannot map all members' memory


class Shards(Generic[T]):
    """A tensor whose rows are divided equally among the members of a process set.

    Created by hvd.empty_sharded().

    Attributes:
        own: this rank's rows. Write only to these.
        whole: the rows of all members in set order, as of the last gather().
        is_view: whether `whole` maps the members' own memory, on one host. `own` is then a part of
            it, and a member's writes may be visible immediately. Otherwise gather() copies.
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
        """Combine the binding's tensors. `copy` gathers the rows if the memory is not joined."""
        self.own = own
        self.whole = whole
        self.process_set = process_set
        self._memory: Memory | None = memory
        self._copy = copy

    @property
    def is_view(self) -> bool:
        """Whether gather() makes no copy."""
        return self._memory is not None and self._memory.joined is not None

    def gather(self) -> T:
        """Return `whole` with all that members wrote before they called this. Collective.

        If `is_view`, writes that a member makes afterwards are visible to the others. Let the
        others finish reading first, for example with hvd.barrier().

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
        """Free the memory. Collective: all members must call it. Later calls do nothing.

        `own` stays valid as long as it is referenced. If `is_view`, `whole` then contains zeros.
        Without this call, the memory is kept until hvd.shutdown(), because other members may read
        it.

        Raises HorovodInternalError if a member fails. The memory is then kept.
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
    """Allocate `nbytes` on each member of the set, joined if possible. Collective.

    Raises on all members: MismatchError if they request different sizes, HorovodInternalError if
    one of them could not allocate its memory.
    """
    runtime = job.current_runtime()
    identity = set_id(process_set)
    members = members_of(process_set)
    own: OwnedBuffer | HorovodInternalError
    try:
        own = runtime.shared_alloc(nbytes)
        said = _SAID.pack(runtime.shared_offset(own), nbytes)
    except HorovodInternalError as error:  # the others wait for this rank's result
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
    except (ValueError, HorovodInternalError):  # another host, partial pages, no address space
        joined = None
    verdicts = allgather_bytes(runtime, bytes([joined is not None]), len(members), None, identity)
    if b"\0" in verdicts:
        return Memory(own, None)
    _seen_by_others[own.pointer] = own
    return Memory(own, joined)


def check_rows(rows: int, process_set: ProcessSet) -> int:
    """Return each member's number of rows. Raises ValueError unless the rows divide evenly."""
    members = len(members_of(process_set))
    if rows % members:
        raise ValueError(
            f"{rows} rows can't be divided equally among the {members} ranks of {process_set}"
        )
    return rows // members
