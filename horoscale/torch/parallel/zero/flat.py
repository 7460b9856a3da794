"""FlatShards: parameters end to end in one piece of memory, an equal part of it for each rank."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Protocol

import torch
from torch import nn
from torch.autograd.graph import increment_version

from horoscale._core import HorovodInternalError
from horoscale.common.process_sets import ProcessSet
from horoscale.common.shards import Shards, allocate
from horoscale.torch.buckets import empty_shared
from horoscale.torch.handles import Handle
from horoscale.torch.movement import allgather, allgather_async
from horoscale.torch.names import unique_name
from horoscale.torch.parallel.mesh import Axis
from horoscale.torch.parallel.offload import Area, Store
from horoscale.torch.parallel.offload.direct import aligned, aligned_memory
from horoscale.torch.parallel.zero import guard
from horoscale.torch.tensors import adopt

_ALIGNMENT = 64  # bytes: parameters begin at cache lines, as kernels like them


@dataclass(frozen=True)
class Place:
    """Where a parameter lies among those of one FlatShards.

    Attributes:
        name: its name in the model; of a tied parameter the first one.
        shape: of the whole parameter.
        begin: the number of its first element.
        end: the number after its last element.
    """

    name: str
    shape: torch.Size
    begin: int
    end: int


@dataclass(frozen=True)
class Owned:
    """What this rank owns of a parameter.

    Attributes:
        name: the parameter's name in the model.
        shape: of the whole parameter.
        begin: the first element, of the parameter flattened, that this rank owns.
        end: the element after the last one.
        offset: where the first one lies in the rank's shard.
    """

    name: str
    shape: torch.Size
    begin: int
    end: int
    offset: int


class _Coming(Protocol):
    """What is on its way."""

    def wait(self) -> object:
        """Return when it is there."""


class FlatShards:
    """Parameters of one dtype, end to end, divided into as many equal parts as an axis has ranks.

    The ends of parameters are not those of parts. Between parameters, and after the last one, is
    room that belongs to none, and is zero.

    Attributes:
        axis: the ranks.
        dtype: of the memory, and of the parameters.
        places: where each parameter lies; the same on all ranks.
        parameters: the parameters, in the order of `places`. Their data are views of `whole`.
        own: this rank's part, of `length` elements. Only it may be written.
        master: what the optimizer updates: `own` itself, or its values in the dtype that the
            parameters had before, which is private. publish() rounds these to `own`.
        whole: all parts. What other ranks have written is there after gather().
        is_view: whether `whole` is the memory of all ranks itself, so that nothing is copied.
        resident: whether `whole` has memory at the moment.
        own_area: where `own` is on a disk, if it is.
        master_area: where `master` is on a disk, if it is: the same, or another one.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        axis: Axis,
        dtype: torch.dtype,
        shared: bool = True,
        resident: bool = True,
        store: Store | None = None,
    ) -> None:
        """Take the values of parameters into the shards. Collective.

        Args:
            parameters: by name, each once. They have the same values on all ranks.
            axis: the ranks.
            dtype: what the parameters are stored in from now on. Where that is not what they are
                stored in now, `master` keeps this rank's values as they are.
            shared: whether the ranks of one host have one memory for `whole`, where that is
                possible.
            resident: whether `whole` is always there. Otherwise free() takes its memory, unless
                `is_view`.
            store: a disk that has `own`, unless `resident`, and a private `master`.
        """
        self.axis = axis
        self.dtype = dtype
        self.parameters = list(parameters.values())
        self.places = tuple(_lay_out(parameters, dtype))
        self.length = _part(self.places[-1].end, axis.size, dtype)
        self._is_resident = resident
        self._name = unique_name(f"zero.{self.places[0].name}", axis.set) if axis.set else ""
        self._store = store
        self.own_area: Area | None = None
        offloaded = store is not None and not resident
        joined = shared and axis.set is not None and not offloaded
        self._shards = self._join() if joined else None
        self._pending: _Coming | None = None
        if self._shards is not None:
            self.own, self.whole = self._shards.own, self._shards.whole
        elif store is not None and offloaded:
            self.own_area = store.area(self.length, dtype)
            self.own = self.own_area.tensor
            self.whole = torch.empty(self.length * axis.size, dtype=dtype)
        elif resident or axis.set is None:
            self.whole = _reachable(self.length * axis.size, dtype, axis.set)
            self.own = self.whole[axis.rank * self.length :][: self.length]
        else:
            self.own = _reachable(self.length, dtype, axis.set)
            self.whole = torch.empty(self.length * axis.size, dtype=dtype)
        self.is_view = self._shards is not None or (axis.set is None and not offloaded)
        before = self.parameters[0].dtype
        self.master, self.master_area = self.own, self.own_area
        if before != dtype and store is not None:
            self.master_area = store.area(self.length, before)
            self.master = self.master_area.tensor
        elif before != dtype:
            self.master = torch.empty(self.length, dtype=before)
        self._take()

    @property
    def resident(self) -> bool:
        """Whether `whole` has memory at the moment."""
        return self.whole.untyped_storage().nbytes() > 0

    def owned(self) -> Iterator[Owned]:
        """Yield what this rank owns of each parameter, in order, where it owns any of it."""
        first = self.axis.rank * self.length
        for place in self.places:
            begin = max(place.begin, first)
            end = min(place.end, first + self.length)
            if begin < end:
                own = (begin - place.begin, end - place.begin)
                yield Owned(place.name, place.shape, *own, begin - first)

    def start_gather(self) -> None:
        """Begin to fetch the other ranks' parts into `whole`, unless it is there."""
        if self.is_view or self._pending is not None or self.resident:
            return
        storage = self.whole.untyped_storage()
        storage.resize_(self.whole.numel() * self.dtype.itemsize)
        self._pending = self._fetch()

    def gather(self) -> None:
        """Have `whole`. Collective, unless it is there or begun."""
        self.start_gather()
        if self._pending is not None:
            coming, self._pending = self._pending, None
            coming.wait()
            for parameter in self.parameters:
                guard.restore(parameter)

    @torch.no_grad()
    def publish(self, rounded: bool = False) -> None:
        """Let the ranks have what was written to `master`. Collective; see Sharded.publish().

        Of a view, others have it after a barrier. `rounded`: `own` has the values already.
        """
        if self.master is not self.own and not rounded:
            self.own.copy_(self.master)
        if self._pending is not None:
            self.gather()
        if self.resident and not self.is_view:
            self._fetch().wait()
        for parameter in self.parameters:
            increment_version(parameter)  # autograd may have saved what it was

    @torch.no_grad()
    def load(self, whole: Mapping[str, torch.Tensor]) -> None:
        """Take this rank's elements of whole parameters, by name, into `master`; see publish()."""
        for owned, value in self.cut(whole):
            self.master[owned.offset :][: owned.end - owned.begin].copy_(value)

    def reload(self) -> None:
        """Take this rank's elements of what was written to the parameters, on all ranks alike."""
        self.load(self._values())
        self.publish()

    def free(self) -> None:
        """Give the memory of `whole` back, unless it is to stay or is that of all ranks."""
        if self._is_resident or self.is_view:
            return
        if self._pending is not None:
            self.gather()
        self.whole.untyped_storage().resize_(0)
        for place, parameter in zip(self.places, self.parameters, strict=True):
            guard.free(parameter, place.name)

    def close(self) -> None:
        """Give shared memory back; parameters get memory of their own. Collective."""
        self.gather()
        for place, parameter in zip(self.places, self.parameters, strict=True):
            parameter.data = self.whole[place.begin : place.end].view(place.shape).clone()
        if self._shards is not None:
            self._shards.close()

    def gathered(self, own: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return what the ranks' tensors of `length` elements are for each parameter. Collective.

        For gradients, states of an optimizer and so on, which lie as `own` does. Any dtype.
        """
        whole = own
        if self.axis.set is not None:
            whole = allgather(own.contiguous(), process_set=self.axis.set)
        return {
            place.name: whole[place.begin : place.end].view(place.shape).clone()
            for place in self.places
        }

    def cut(self, whole: Mapping[str, torch.Tensor]) -> Iterator[tuple[Owned, torch.Tensor]]:
        """Yield this rank's elements of whole tensors by names, where it owns any."""
        for owned in self.owned():
            yield owned, whole[owned.name].reshape(-1)[owned.begin : owned.end]

    def _values(self) -> dict[str, torch.Tensor]:
        return {
            place.name: parameter.detach()
            for place, parameter in zip(self.places, self.parameters, strict=True)
        }

    def _fetch(self) -> _Coming:
        """Begin to bring all parts to `whole`."""
        if self.own_area is None:
            return self._allgather_async(self.own)
        assert self._store is not None
        if self.axis.set is None:
            return self._store.read(self.own_area, 0, self.whole)
        memory = aligned_memory(self.own.nbytes)[: self.own.nbytes].view(self.dtype)
        return _Gather(self, memory, self._store)

    def _allgather_async(self, own: torch.Tensor) -> Handle:
        assert self.axis.set is not None
        return allgather_async(own, self._name, self.axis.set, out=self.whole)

    def _join(self) -> Shards[torch.Tensor] | None:
        """Map the ranks' parts side by side; None where that can't be, on all ranks alike."""
        assert self.axis.set is not None
        try:
            memory = allocate(self.length * self.dtype.itemsize, self.axis.set)
        except HorovodInternalError:  # one of them has not got its memory
            return None
        if memory.joined is None:
            return None
        own = adopt(memory.own, self.dtype, (self.length,))
        whole = adopt(memory.joined, self.dtype, (self.length * self.axis.size,))
        return Shards(own, whole, memory, self.axis.set, lambda: None)

    @torch.no_grad()
    def _take(self) -> None:
        """Copy this rank's values, and have the parameters be views."""
        self.master.zero_()
        self.load(self._values())
        for place, parameter in zip(self.places, self.parameters, strict=True):
            parameter.data = self.whole[place.begin : place.end].view(place.shape)
        self.free()
        self.publish()
        for area in (self.own_area, self.master_area):
            if area is not None:
                area.drop()


class _Gather:
    """A part that is read from the disk, and then sent to all ranks while others compute."""

    def __init__(self, shards: FlatShards, memory: torch.Tensor, store: Store) -> None:
        assert shards.own_area is not None
        self._handles: list[Handle] = []
        self._transfer = store.read(shards.own_area, 0, memory).then(
            lambda: self._handles.append(shards._allgather_async(memory))
        )

    def wait(self) -> None:
        self._transfer.wait()
        self._handles.pop().wait()


def offloaded_bytes(
    parameters: Iterable[nn.Parameter], axis: Axis, dtype: torch.dtype, resident: bool
) -> int:
    """Return how much of a disk the FlatShards of parameters needs, with their gradients."""
    named = {str(number): parameter for number, parameter in enumerate(parameters)}
    first = named["0"]
    length = _part(list(_lay_out(named, dtype))[-1].end, axis.size, dtype)
    own = 0 if resident else aligned(length * dtype.itemsize)
    private = aligned(length * first.dtype.itemsize)
    gradient = 0 if resident or not first.requires_grad else private
    return own + gradient + (private if first.dtype != dtype else 0)


def _lay_out(parameters: Mapping[str, nn.Parameter], dtype: torch.dtype) -> Iterator[Place]:
    end = 0
    unit = _ALIGNMENT // dtype.itemsize
    for name, parameter in parameters.items():
        begin = -(-end // unit) * unit
        end = begin + prod(parameter.shape)
        yield Place(name, parameter.shape, begin, end)


def _part(elements: int, ranks: int, dtype: torch.dtype) -> int:
    """Return the length of a part: whole pages, so that one rank's can lie beside another's."""
    page = mmap.PAGESIZE // dtype.itemsize
    return -(-elements // (ranks * page)) * page


def _reachable(length: int, dtype: torch.dtype, process_set: ProcessSet | None) -> torch.Tensor:
    """Return memory that other ranks of the host can read where it is, if there is enough of it."""
    if process_set is None:
        return torch.zeros(length, dtype=dtype)
    try:
        return empty_shared(length, dtype=dtype)
    except HorovodInternalError:
        return torch.zeros(length, dtype=dtype)
