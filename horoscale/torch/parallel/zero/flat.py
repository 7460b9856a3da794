"""FlatShards: concatenated parameters, divided equally among ranks."""

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

_ALIGNMENT = 64  # bytes: parameters begin at cache lines, for fast kernels


@dataclass(frozen=True)
class Place:
    """The position of a parameter within a FlatShards.

    Attributes:
        name: its name in the model; the first name if it is tied.
        shape: the shape of the whole parameter.
        begin: the offset of its first element.
        end: the offset after its last element.
    """

    name: str
    shape: torch.Size
    begin: int
    end: int


@dataclass(frozen=True)
class Owned:
    """This rank's part of a parameter.

    Attributes:
        name: the parameter's name in the model.
        shape: the shape of the whole parameter.
        begin: the first element of the flattened parameter that this rank owns.
        end: the element after the last one.
        offset: the position of the first one in the rank's shard.
    """

    name: str
    shape: torch.Size
    begin: int
    end: int
    offset: int


class _Coming(Protocol):
    """An operation in progress."""

    def wait(self) -> object:
        """Wait until it is done."""


class FlatShards:
    """Concatenated parameters of one dtype, divided into equal parts, one for each rank of an axis.

    Parts need not end where parameters end. There is padding between parameters, and after the last
    one. It is zero.

    Attributes:
        axis: the ranks.
        dtype: the dtype of the memory and of the parameters.
        places: the position of each parameter; the same on all ranks.
        parameters: the parameters, in the order of `places`. Their data are views of `whole`.
        own: this rank's part, of `length` elements. Only it may be written.
        master: the values that the optimizer updates: `own` itself, or a private copy in the
            parameters' original dtype. publish() rounds it to `own`.
        whole: all parts. Other ranks' values are valid after gather().
        is_view: whether `whole` is memory shared by all ranks, so that nothing is copied.
        resident: whether `whole` has memory at the moment.
        own_area: the location of `own` on a disk, if it is offloaded.
        master_area: the location of `master` on a disk, if it is offloaded: the same, or another.
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
        """Move the values of parameters into the shards. Collective.

        Args:
            parameters: the parameters by name, each once. Values must be equal on all ranks.
            axis: the ranks.
            dtype: the new dtype of the parameters. If it differs from the current one, `master`
                keeps this rank's values in the current dtype.
            shared: whether the ranks of one host share the memory of `whole`, if possible.
            resident: whether `whole` always has memory. Otherwise free() releases it, unless
                `is_view`.
            store: a disk that stores `own`, unless `resident`, and a private `master`.
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
        """Yield this rank's part of each parameter of which it owns any elements, in order."""
        first = self.axis.rank * self.length
        for place in self.places:
            begin = max(place.begin, first)
            end = min(place.end, first + self.length)
            if begin < end:
                own = (begin - place.begin, end - place.begin)
                yield Owned(place.name, place.shape, *own, begin - first)

    def start_gather(self) -> None:
        """Start to gather the other ranks' parts into `whole`, unless it is complete."""
        if self.is_view or self._pending is not None or self.resident:
            return
        storage = self.whole.untyped_storage()
        storage.resize_(self.whole.numel() * self.dtype.itemsize)
        self._pending = self._fetch()

    def gather(self) -> None:
        """Make `whole` complete. Collective, unless it is complete or start_gather() was called."""
        self.start_gather()
        if self._pending is not None:
            coming, self._pending = self._pending, None
            coming.wait()
            for parameter in self.parameters:
                guard.restore(parameter)

    @torch.no_grad()
    def publish(self, rounded: bool = False) -> None:
        """Send the values of `master` to all ranks. Collective; see Sharded.publish().

        If `is_view`, other ranks see them after a barrier. `rounded`: whether `own` already has
        them.
        """
        if self.master is not self.own and not rounded:
            self.own.copy_(self.master)
        if self._pending is not None:
            self.gather()
        if self.resident and not self.is_view:
            self._fetch().wait()
        for parameter in self.parameters:
            increment_version(parameter)  # autograd may have saved the old values

    @torch.no_grad()
    def load(self, whole: Mapping[str, torch.Tensor]) -> None:
        """Load this rank's elements of whole parameters, by name, into `master`; see publish()."""
        for owned, value in self.cut(whole):
            self.master[owned.offset :][: owned.end - owned.begin].copy_(value)

    def reload(self) -> None:
        """Load this rank's elements of values that all ranks have written to the parameters."""
        self.load(self._values())
        self.publish()

    def free(self) -> None:
        """Release the memory of `whole`, unless it is always resident or shared by all ranks."""
        if self._is_resident or self.is_view:
            return
        if self._pending is not None:
            self.gather()
        self.whole.untyped_storage().resize_(0)
        for place, parameter in zip(self.places, self.parameters, strict=True):
            guard.free(parameter, place.name)

    def close(self) -> None:
        """Release shared memory; parameters get their own memory. Collective."""
        self.gather()
        for place, parameter in zip(self.places, self.parameters, strict=True):
            parameter.data = self.whole[place.begin : place.end].view(place.shape).clone()
        if self._shards is not None:
            self._shards.close()

    def gathered(self, own: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the ranks' tensors of `length` elements as whole tensors by name. Collective.

        For tensors that correspond to `own`, such as gradients and optimizer states. Any dtype.
        """
        whole = own
        if self.axis.set is not None:
            whole = allgather(own.contiguous(), process_set=self.axis.set)
        return {
            place.name: whole[place.begin : place.end].view(place.shape).clone()
            for place in self.places
        }

    def cut(self, whole: Mapping[str, torch.Tensor]) -> Iterator[tuple[Owned, torch.Tensor]]:
        """Yield this rank's elements of whole tensors, given by name, where it owns any."""
        for owned in self.owned():
            yield owned, whole[owned.name].reshape(-1)[owned.begin : owned.end]

    def _values(self) -> dict[str, torch.Tensor]:
        return {
            place.name: parameter.detach()
            for place, parameter in zip(self.places, self.parameters, strict=True)
        }

    def _fetch(self) -> _Coming:
        """Start to gather all parts into `whole`."""
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
        """Map the ranks' parts side by side; return None on all ranks if that is impossible."""
        assert self.axis.set is not None
        try:
            memory = allocate(self.length * self.dtype.itemsize, self.axis.set)
        except HorovodInternalError:  # a rank could not allocate its memory
            return None
        if memory.joined is None:
            return None
        own = adopt(memory.own, self.dtype, (self.length,))
        whole = adopt(memory.joined, self.dtype, (self.length * self.axis.size,))
        return Shards(own, whole, memory, self.axis.set, lambda: None)

    @torch.no_grad()
    def _take(self) -> None:
        """Copy this rank's values, and make the parameters views."""
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
    """A part that is read from the disk and then sent to all ranks, in the background."""

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
    """Return the disk space that the FlatShards of parameters needs, including gradients."""
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
    """Return the length of a part: whole pages, so that parts can be mapped side by side."""
    page = mmap.PAGESIZE // dtype.itemsize
    return -(-elements // (ranks * page)) * page


def _reachable(length: int, dtype: torch.dtype, process_set: ProcessSet | None) -> torch.Tensor:
    """Return memory that other ranks of the host can read directly, if there is enough of it."""
    if process_set is None:
        return torch.zeros(length, dtype=dtype)
    try:
        return empty_shared(length, dtype=dtype)
    except HorovodInternalError:
        return torch.zeros(length, dtype=dtype)
