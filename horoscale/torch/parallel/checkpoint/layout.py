"""Which part of a whole tensor a rank holds: boxes, and their location in the rank's memory.

A rank may hold a range of a dimension (tensor parallelism), several ranges (queries, keys and
values in one matrix), or a range of the flattened tensor. All of these are boxes: blocks of
consecutive indices in each dimension.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

import torch

from horoscale.torch.parallel.division import Shard

Extents: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Box:
    """A block of a tensor: its offset and its extents."""

    offsets: Extents
    sizes: Extents

    @classmethod
    def of_all(cls, shape: Sequence[int]) -> Box:
        """Return the box that covers a whole tensor."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def numel(self) -> int:
        """The number of elements."""
        return prod(self.sizes)

    def intersection(self, other: Box) -> Box | None:
        """Return the intersection of two boxes of a tensor, or None if it is empty."""
        begins = tuple(map(max, self.offsets, other.offsets))
        ends = map(min, self.ends, other.ends)
        sizes = tuple(end - begin for begin, end in zip(begins, ends, strict=True))
        return Box(begins, sizes) if all(size > 0 for size in sizes) else None

    @property
    def ends(self) -> Extents:
        """The end in each dimension (exclusive)."""
        return tuple(map(sum, zip(self.offsets, self.sizes, strict=True)))

    def without(self, other: Box) -> list[Box]:
        """Return boxes that cover this one without the other."""
        common = self.intersection(other)
        if common is None:
            return [self]
        found = []
        offsets, sizes = list(self.offsets), list(self.sizes)
        for dim, (begin, end) in enumerate(zip(common.offsets, common.ends, strict=True)):
            for first, size in (
                (offsets[dim], begin - offsets[dim]),
                (end, offsets[dim] + sizes[dim] - end),
            ):
                if size > 0:
                    found.append(
                        Box(
                            (*offsets[:dim], first, *offsets[dim + 1 :]),
                            (*sizes[:dim], size, *sizes[dim + 1 :]),
                        )
                    )
            offsets[dim], sizes[dim] = begin, end - begin
        return found

    def moved(self, begin: Sequence[int], to: Sequence[int]) -> Box:
        """Return this box, moved from coordinates relative to `begin` to those relative to `to`."""
        offsets = (own - a + b for own, a, b in zip(self.offsets, begin, to, strict=True))
        return replace(self, offsets=tuple(offsets))

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return this part of a tensor as a view."""
        for dim, (offset, size) in enumerate(zip(self.offsets, self.sizes, strict=True)):
            tensor = tensor.narrow(dim, offset, size)
        return tensor

    def tiles(self, max_numel: int) -> list[Box]:
        """Split it into boxes of at most `max_numel` elements, by halving the largest dimension."""
        if self.numel <= max_numel or self.numel == 1:
            return [self]
        dim = max(range(len(self.sizes)), key=lambda one: self.sizes[one])
        half = (self.sizes[dim] + 1) // 2
        lower, upper = list(self.sizes), list(self.sizes)
        lower[dim], upper[dim] = half, self.sizes[dim] - half
        middle = list(self.offsets)
        middle[dim] += half
        return [
            *Box(self.offsets, tuple(lower)).tiles(max_numel),
            *Box(tuple(middle), tuple(upper)).tiles(max_numel),
        ]


@dataclass(frozen=True)
class Piece:
    """A box of a whole tensor, and this rank's memory for it, a tensor with the box's extents."""

    box: Box
    tensor: torch.Tensor


@dataclass(frozen=True)
class Layout:
    """The relation between a rank's tensor and the whole tensor.

    Attributes:
        whole: the shape of the whole tensor.
        local: the shape of this rank's shard.
        places: boxes of the shard, and the offset of each in the whole tensor.
        flat: the range of the flattened shard that the rank holds, as a 1-d tensor, for optimizers
            that divide it further. None: it holds all of the shard.
        is_transposed: whether the whole tensor is transposed with respect to all of these.
    """

    whole: Extents
    local: Extents
    places: tuple[tuple[Box, Extents], ...]
    flat: tuple[int, int] | None = None
    is_transposed: bool = False

    @classmethod
    def of_whole(cls, shape: Sequence[int]) -> Layout:
        """Return the layout of a tensor that this rank holds in full."""
        box = Box.of_all(shape)
        return cls(box.sizes, box.sizes, ((box, box.offsets),))

    @classmethod
    def of_shard(cls, shard: Shard, local: Sequence[int]) -> Layout:
        """Return the layout of a divided parameter whose shard has the shape `local`.

        Raises ValueError if the division gives this rank another shape.
        """
        if shard.dim is None:
            return cls.of_whole(local)
        dim = shard.dim
        whole = list(local)
        whole[dim] = sum(shard.sizes) * sum(shard.parts) // shard.parts[0]
        if shard.extent(whole[dim]) != local[dim]:
            raise ValueError(
                f"a shard of {tuple(local)} has {local[dim]} of dimension {dim}, but rank "
                f"{shard.axis.rank} of axis {shard.axis.name} gets {shard.extent(whole[dim])} of "
                f"{whole[dim]}"
            )
        places = []
        begin = 0
        for offset, size in shard.places(whole[dim]):
            box = Box(_at(dim, begin, len(local)), (*local[:dim], size, *local[dim + 1 :]))
            places.append((box, _at(dim, offset, len(local))))
            begin += size
        return cls(tuple(whole), tuple(local), tuple(places))

    def of_range(self, begin: int, end: int) -> Layout:
        """Return the layout of a range of the flattened shard, as a 1-d tensor."""
        if not 0 <= begin <= end <= prod(self.local):
            raise ValueError(f"the range {begin} to {end} is none of a shard of {self.local}")
        return replace(self, flat=(begin, end))

    def transposed(self) -> Layout:
        """Return the layout of the same memory within the transposed whole tensor."""
        return replace(self, whole=self.whole[::-1], is_transposed=not self.is_transposed)

    @property
    def shape(self) -> Extents:
        """The shape of the rank's tensor."""
        return self.local if self.flat is None else (self.flat[1] - self.flat[0],)

    def pieces(self, tensor: torch.Tensor) -> list[Piece]:
        """Return the boxes of the whole tensor that a tensor holds, as views of it.

        Raises ValueError if the tensor does not have the layout's shape.
        """
        if tuple(tensor.shape) != self.shape:
            raise ValueError(f"it has the shape {tuple(tensor.shape)}, and not {self.shape}")
        found = []
        for held, view in self._held(tensor):
            for place, whole in self.places:
                common = held.intersection(place)
                if common is None:
                    continue
                own = common.moved(held.offsets, (0,) * len(held.offsets)).of(view)
                box = common.moved(place.offsets, whole)
                if self.is_transposed:
                    box, own = Box(box.offsets[::-1], box.sizes[::-1]), own.t()
                found.append(Piece(box, own))
        return found

    def _held(self, tensor: torch.Tensor) -> Iterator[tuple[Box, torch.Tensor]]:
        """Yield the boxes of the shard that the rank holds, with views of the tensor."""
        if self.flat is None:
            yield Box.of_all(self.local), tensor
            return
        begin = 0
        for box in boxes_of_range(self.local, *self.flat):
            yield box, tensor[begin : begin + box.numel].view(box.sizes)
            begin += box.numel


def boxes_of_range(shape: Sequence[int], begin: int, end: int) -> list[Box]:
    """Return consecutive boxes of a tensor that cover a range of the flattened tensor."""
    if begin >= end:
        return []
    if not shape:
        return [Box((), ())]
    inner = prod(shape[1:])
    first, last = -(-begin // inner), end // inner  # the whole rows
    if first > last:  # within one row
        return _in_row(shape, last, begin - last * inner, end - last * inner)
    boxes = _in_row(shape, first - 1, inner - (first * inner - begin), inner)
    if first < last:
        boxes.append(Box(_at(0, first, len(shape)), (last - first, *shape[1:])))
    return boxes + _in_row(shape, last, 0, end - last * inner)


def _in_row(shape: Sequence[int], row: int, begin: int, end: int) -> list[Box]:
    return [
        Box((row, *box.offsets), (1, *box.sizes)) for box in boxes_of_range(shape[1:], begin, end)
    ]


def _at(dim: int, offset: int, dims: int) -> Extents:
    return tuple(offset if one == dim else 0 for one in range(dims))
