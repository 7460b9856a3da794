"""Bucket: the gradients of the parameters of one FlatShards, from autograd to the owners' parts.

Each gradient is copied to its parameter's place in a buffer in shared memory, the room. A
reduce-scatter of the room leaves each rank the averages of its own part. On one host, it reads the
rooms of the other ranks directly.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import torch

from horoscale._core import Encoding, HorovodInternalError, ReduceOp
from horoscale.torch import collectives
from horoscale.torch.buckets import empty_shared
from horoscale.torch.handles import Handle
from horoscale.torch.names import unique_name
from horoscale.torch.parallel.offload import Area, Store, Transfer
from horoscale.torch.parallel.zero.flat import FlatShards

_MOST_ROOMS = 2  # maximum number of reused rooms of a size
_MOST_WRITES = 2  # maximum number of gradients being written to a disk


class Rooms:
    """Memory for buckets, which buckets of equal size reuse."""

    def __init__(self) -> None:
        """Create it without memory."""
        self._free: dict[int, list[tuple[torch.Tensor, Transfer]]] = {}
        self._writes: deque[Transfer] = deque()
        self._made: dict[int, int] = {}
        self.sent: deque[Bucket] = deque()  # in the order in which they were sent

    def take(self, length: int, dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialized room with `length` elements.

        If the maximum number of rooms exists, it waits for one that is being reduced. All ranks
        send their buckets in the same order, so all have sent that one.
        """
        nbytes = length * dtype.itemsize
        free = self._free.setdefault(nbytes, [])
        while not free and self.sent and self._made.get(nbytes, 0) >= _MOST_ROOMS:
            self.sent[0].finish(self)
        if free:
            room, transfer = free.pop(0)
            transfer.wait()
            return room.view(dtype)
        self._made[nbytes] = self._made.get(nbytes, 0) + 1
        return make_room(length, dtype)

    def give_back(self, room: torch.Tensor, after: Transfer) -> None:
        """Release a room for reuse when a transfer is done."""
        self._free[room.nbytes].append((room.view(torch.uint8), after))

    def writes(self, transfer: Transfer) -> None:
        """Track the write of a gradient to disk; wait if there are too many."""
        self._writes.append(transfer)
        while len(self._writes) > _MOST_WRITES:
            self._writes.popleft().wait()

    def settle(self) -> None:
        """Wait until all writes are done; raise OffloadError if one failed."""
        while self._writes:
            self._writes.popleft().wait()


def make_room(length: int, dtype: torch.dtype) -> torch.Tensor:
    """Return zeros, in memory that the other ranks of the host can read directly, if possible."""
    try:
        return empty_shared(length, dtype=dtype)
    except HorovodInternalError:  # not enough shared memory
        return torch.zeros(length, dtype=dtype)


class _Sent(NamedTuple):
    handle: Handle | None  # None: there are no other ranks
    room: torch.Tensor
    result: torch.Tensor


class Bucket:
    """The gradients of one FlatShards.

    Attributes:
        shards: the shards of the parameters.
        gradient: the reduced gradient of this rank's part, as long as `shards.own`, or None.
        fresh: whether there are gradients that have not been sent.
        area: the location of `gradient` on a disk, if it is offloaded.
    """

    def __init__(
        self,
        shards: FlatShards,
        sent_as: torch.dtype,
        result: torch.dtype,
        kept: bool,
        passes: int,
        encoding: Encoding = Encoding.NONE,
        store: Store | None = None,
    ) -> None:
        """Create a bucket without gradients.

        Args:
            shards: the shards of the parameters.
            sent_as: the dtype in which gradients are summed and reduced.
            result: the dtype of `gradient`.
            kept: whether this rank's local gradients remain until clear(), so that later ones are
                added to them and reduced again with them (stage 1). Otherwise their room is reused,
                and later reductions are added to `gradient`.
            passes: the number of gradients of each parameter to accumulate before sending.
            encoding: how sums are sent between hosts. If it is lossy, `kept` must be False: each
                reduction sends the errors of the previous ones, so all of them must count.
            store: a disk that stores `gradient`.
        """
        self.shards = shards
        self.gradient: torch.Tensor | None = None
        self.fresh = False
        self._dtype = sent_as
        self._kept = kept
        self._passes = passes
        self._reduction = collectives.Reduction(ReduceOp.AVERAGE, encoding=encoding)
        self._store = store
        self.area: Area | None = None if store is None else store.area(shards.length, result)
        self._memory = (  # memory of `gradient`
            torch.empty(shards.length, dtype=result) if self.area is None else self.area.tensor
        )
        self._room: torch.Tensor | None = None
        self._filled: set[int] = set()
        self._arrived = [0] * len(shards.places)
        self._sent: _Sent | None = None
        ends = [0, *(place.end for place in shards.places)]
        begins = [*(place.begin for place in shards.places), shards.length * shards.axis.size]
        self._gaps = [pair for pair in zip(ends, begins, strict=True) if pair[0] < pair[1]]
        name = f"zero.gradient.{shards.places[0].name}"
        self._name = name if shards.axis.set is None else unique_name(name, shards.axis.set)

    @property
    def complete(self) -> bool:
        """Whether all gradients of all backward passes that count are there."""
        return min(self._arrived) >= self._passes

    @torch.no_grad()
    def take(self, index: int, gradient: torch.Tensor, counts: bool, rooms: Rooms) -> None:
        """Store the gradient of a parameter, or add it to the existing one."""
        if self._kept and self._sent is not None:
            self.finish(rooms)  # other ranks are reading the room
        if self._room is None:
            self._room = self._open(rooms)
        place = self.shards.places[index]
        target = self._room[place.begin : place.end].view(place.shape)
        if index in self._filled:
            target.add_(gradient)
        else:
            target.copy_(gradient)
            self._filled.add(index)
        self.fresh = True
        self._arrived[index] += counts

    @torch.no_grad()
    def send(self, rooms: Rooms) -> None:
        """Start to reduce. Missing gradients count as zeros."""
        self.finish(rooms)
        room = self._open(rooms) if self._room is None else self._room
        for index, place in enumerate(self.shards.places):
            if index not in self._filled:
                room[place.begin : place.end] = 0
        self._sent = self._reduce(room)
        rooms.sent.append(self)
        self._arrived = [0] * len(self._arrived)
        self.fresh = False
        if self._kept:
            self._room = room
        else:
            self._room = None
            self._filled.clear()

    @torch.no_grad()
    def finish(self, rooms: Rooms) -> None:
        """Wait for the reduction, if one was started."""
        if self._sent is None:
            return
        sent, self._sent = self._sent, None
        rooms.sent.remove(self)
        if sent.handle is not None:
            sent.handle.wait()
        written = Transfer()
        if self.gradient is not None and not self._kept:
            rooms.settle()
            self.gradient.add_(sent.result)
        elif sent.result is not self._memory:
            written = self._keep(sent.result, rooms)
        self.gradient = self._memory
        if not self._kept:
            rooms.give_back(sent.room, written)

    def clear(self) -> None:
        """Clear all gradients; no reduction may be in progress."""
        self.gradient = None
        self.fresh = False
        self._filled.clear()
        self._arrived = [0] * len(self._arrived)

    def _keep(self, result: torch.Tensor, rooms: Rooms) -> Transfer:
        """Copy the reduced gradient to the memory of `gradient`, or start to write it."""
        if self._store is None or self.area is None:
            self._memory.copy_(result)
            return Transfer()
        transfer = self._store.write(self.area, 0, result.to(self._memory.dtype))
        rooms.writes(transfer)
        return transfer

    def _open(self, rooms: Rooms) -> torch.Tensor:
        length = self.shards.length * self.shards.axis.size
        room = make_room(length, self._dtype) if self._kept else rooms.take(length, self._dtype)
        for begin, end in self._gaps:
            room[begin:end] = 0
        return room

    def _reduce(self, room: torch.Tensor) -> _Sent:
        process_set = self.shards.axis.set
        if process_set is None:
            return _Sent(None, room, room)
        result = self._memory
        adds_up = self.gradient is not None and not self._kept
        if self._dtype != result.dtype or adds_up or self.area is not None:
            result = torch.empty(self.shards.length, dtype=self._dtype)
        call = collectives.Call(self._name, process_set)
        handle = collectives.reducescatter([room], self._reduction, call, out=[result])
        return _Sent(handle, room, result)
