"""Bucket: the gradients of the parameters of one FlatShards, from autograd to the owners' parts.

Each gradient is copied to its parameter's place in a room, which is shared memory. A reduce-scatter
of the room leaves each rank the averages of what it owns: on one host it folds them straight from
the rooms of the others.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import torch

from horoscale._core import HorovodInternalError
from horoscale.torch.buckets import empty_shared
from horoscale.torch.handles import Handle
from horoscale.torch.names import unique_name
from horoscale.torch.parallel.offload import Area, Store, Transfer
from horoscale.torch.parallel.zero.flat import FlatShards
from horoscale.torch.reductions import reducescatter_async

_MOST_ROOMS = 2  # of one size, where rooms are used again
_MOST_WRITES = 2  # of gradients on their way to a disk


class Rooms:
    """Memory for buckets, which those of equal size use one after the other."""

    def __init__(self) -> None:
        """Begin without memory."""
        self._free: dict[int, list[tuple[torch.Tensor, Transfer]]] = {}
        self._writes: deque[Transfer] = deque()
        self._made: dict[int, int] = {}
        self.sent: deque[Bucket] = deque()  # in the order in which they were sent

    def take(self, length: int, dtype: torch.dtype) -> torch.Tensor:
        """Return room for so many elements, of any values.

        Where there are several already, this waits for one that is being reduced. All ranks send
        their buckets in one order, so the one waited for is sent by all.
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
        """Let another bucket use it when a transfer is done."""
        self._free[room.nbytes].append((room.view(torch.uint8), after))

    def writes(self, transfer: Transfer) -> None:
        """Follow a gradient to the disk; wait for others where there are several on their way."""
        self._writes.append(transfer)
        while len(self._writes) > _MOST_WRITES:
            self._writes.popleft().wait()

    def settle(self) -> None:
        """Wait for what is being written; raises OffloadError if something could not be."""
        while self._writes:
            self._writes.popleft().wait()


def make_room(length: int, dtype: torch.dtype) -> torch.Tensor:
    """Return zeros that the other ranks of the host can read where they are, if that can be."""
    try:
        return empty_shared(length, dtype=dtype)
    except HorovodInternalError:  # not enough shared memory
        return torch.zeros(length, dtype=dtype)


class _Sent(NamedTuple):
    handle: Handle | None  # None: there is nobody else
    room: torch.Tensor
    result: torch.Tensor


class Bucket:
    """The gradients of one FlatShards.

    Attributes:
        shards: of the parameters.
        gradient: of what this rank owns, reduced: as long as `shards.own`. None: there is none.
        fresh: whether gradients have come that are not sent.
        area: where `gradient` is on a disk, if it is.
    """

    def __init__(
        self,
        shards: FlatShards,
        sent_as: torch.dtype,
        result: torch.dtype,
        kept: bool,
        passes: int,
        store: Store | None = None,
    ) -> None:
        """Begin without gradients.

        Args:
            shards: of the parameters.
            sent_as: the dtype in which gradients are added up and reduced.
            result: the dtype of `gradient`.
            kept: whether this rank's own gradients stay until clear(), so that later ones add to
                them, and are reduced again with them (stage 1). Otherwise their room is used again,
                and what is reduced later adds to `gradient`.
            passes: how often a gradient of each parameter comes before the bucket is sent.
            store: a disk that has `gradient`.
        """
        self.shards = shards
        self.gradient: torch.Tensor | None = None
        self.fresh = False
        self._dtype = sent_as
        self._kept = kept
        self._passes = passes
        self._store = store
        self.area: Area | None = None if store is None else store.area(shards.length, result)
        self._memory = (  # of `gradient`
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
        """Whether every gradient is there, of all backward passes that count."""
        return min(self._arrived) >= self._passes

    @torch.no_grad()
    def take(self, index: int, gradient: torch.Tensor, counts: bool, rooms: Rooms) -> None:
        """Put the gradient of a parameter in its place, or add it to the one that is there."""
        if self._kept and self._sent is not None:
            self.finish(rooms)  # others read the room
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
        """Begin to reduce. Gradients that are missing count as zeros."""
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
        """Wait until what was sent is reduced, if anything was."""
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
        """Forget all gradients; none is on its way."""
        self.gradient = None
        self.fresh = False
        self._filled.clear()
        self._arrived = [0] * len(self._arrived)

    def _keep(self, result: torch.Tensor, rooms: Rooms) -> Transfer:
        """Copy what is reduced to the memory of `gradient`, or begin to."""
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
        handle = reducescatter_async(room, self._name, process_set=process_set, out=result)
        return _Sent(handle, room, result)
