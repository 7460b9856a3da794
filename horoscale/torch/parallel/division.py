"""How a dimension is divided among ranks, and which parameters are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import nn

from horoscale.torch.parallel.mesh import Axis


def get_dim_for_local_rank(dim: int, world_size: int, local_rank: int, multiple_of: int = 1) -> int:
    """Return how much of a dimension one of several ranks gets.

    All get a multiple of `multiple_of`; the lower ranks get one more where these don't divide.

    Args:
        dim: the extent of the whole.
        world_size: the number of ranks that share it.
        local_rank: the position of one of them.
        multiple_of: what can't be divided, such as the width of a head.

    Raises:
        ValueError: `multiple_of` does not divide `dim`, or the rank is none of these.
    """
    if multiple_of < 1 or dim % multiple_of:
        raise ValueError(f"a dimension of {dim} is no multiple of {multiple_of}")
    if not 0 <= local_rank < world_size:
        raise ValueError(f"rank {local_rank} is none of {world_size}")
    each, rest = divmod(dim // multiple_of, world_size)
    return (each + (local_rank < rest)) * multiple_of


def split_sizes(dim: int, ranks: int, multiple_of: int = 1) -> tuple[int, ...]:
    """Return get_dim_for_local_rank() of each rank."""
    return tuple(get_dim_for_local_rank(dim, ranks, rank, multiple_of) for rank in range(ranks))


def bounds(sizes: Sequence[int], position: int) -> tuple[int, int]:
    """Return where a rank's part begins and ends."""
    ends = list(accumulate(sizes))
    return ends[position] - sizes[position], ends[position]


@dataclass(frozen=True)
class Shard:
    """What a rank has of a parameter that is divided.

    A module that has such parameters says so by an attribute `shards`: a dict of these by the
    parameters' names.

    Attributes:
        axis: the ranks among which it is divided.
        dim: along which dimension; None: the first rank has all of it, and the others have none.
        sizes: what each rank has. Where it is made of several `parts` that are divided each for
            itself, this is of the first part.
        parts: the extents of the parts, as shares of the whole: of queries, keys and values in one
            matrix (1, 1, 1).
    """

    axis: Axis
    dim: int | None
    sizes: tuple[int, ...] = ()
    parts: tuple[int, ...] = (1,)

    def extent(self, whole: int) -> int:
        """Return how much of an extent this rank has."""
        return sum(number for _, number in self.places(whole))

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """Return this rank's shard of a whole tensor: a view, or a new tensor of several parts.

        Raises ValueError if the tensor can't be divided so.
        """
        if self.dim is None:
            return whole
        extent = whole.shape[self.dim]
        unit, rest = divmod(extent, sum(self.parts))
        if rest or unit * self.parts[0] != sum(self.sizes):
            raise ValueError(
                f"dimension {self.dim} of {tuple(whole.shape)} can't be divided into {self.sizes} "
                f"on axis {self.axis.name}, in parts of {self.parts}"
            )
        shards = [whole.narrow(self.dim, *place) for place in self.places(extent)]
        return shards[0] if len(shards) == 1 else torch.cat(shards, self.dim)

    def whole(self, shards: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the tensor whose shards on all ranks these are, in their order."""
        if self.dim is None:
            return shards[0]
        if len(self.parts) == 1:
            return torch.cat(list(shards), self.dim)
        split = [
            torch.split(
                one,
                [one.shape[self.dim] * share // sum(self.parts) for share in self.parts],
                self.dim,
            )
            for one in shards
        ]
        return torch.cat([part for parts in zip(*split, strict=True) for part in parts], self.dim)

    def places(self, extent: int) -> list[tuple[int, int]]:
        """Return where this rank's rows of each part begin in the whole, and how many they are."""
        begin, end = bounds(self.sizes, self.axis.rank)
        unit, total = extent // sum(self.parts), max(sum(self.sizes), 1)
        return [
            (unit * before + begin * unit * share // total, (end - begin) * unit * share // total)
            for before, share in zip(accumulate(self.parts, initial=0), self.parts, strict=False)
        ]


def declared_shards(model: nn.Module) -> Iterator[tuple[nn.Parameter, Shard]]:
    """Yield the divided parameters of a model with their shards; shared ones more than once."""
    for module in model.modules():
        shards: dict[str, Shard] = getattr(module, "shards", {})
        for name, shard in shards.items():
            parameter = getattr(module, name)
            if parameter is not None:
                yield parameter, shard
