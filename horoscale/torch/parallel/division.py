"""How dimensions and parameters are divided among ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import nn

from horoscale.torch.parallel.mesh import Axis


def get_dim_for_local_rank(dim: int, world_size: int, local_rank: int, multiple_of: int = 1) -> int:
    """Return one rank's share of a dimension that is divided among several ranks.

    Every share is a multiple of `multiple_of`. If these units do not divide evenly, the lower ranks
    get one more each.

    Args:
        dim: the size of the whole dimension.
        world_size: the number of ranks that share it.
        local_rank: the position of one of them.
        multiple_of: the size of an indivisible unit, such as the width of a head.

    Raises:
        ValueError: `multiple_of` does not divide `dim`, or the rank is out of range.
    """
    if multiple_of < 1 or dim % multiple_of:
        raise ValueError(f"a dimension of {dim} is not a multiple of {multiple_of}")
    if not 0 <= local_rank < world_size:
        raise ValueError(f"rank {local_rank} is not one of {world_size} ranks")
    each, rest = divmod(dim // multiple_of, world_size)
    return (each + (local_rank < rest)) * multiple_of


def split_sizes(dim: int, ranks: int, multiple_of: int = 1) -> tuple[int, ...]:
    """Return get_dim_for_local_rank() for each rank."""
    return tuple(get_dim_for_local_rank(dim, ranks, rank, multiple_of) for rank in range(ranks))


def bounds(sizes: Sequence[int], position: int) -> tuple[int, int]:
    """Return the beginning and the end of a rank's part."""
    ends = list(accumulate(sizes))
    return ends[position] - sizes[position], ends[position]


@dataclass(frozen=True)
class Shard:
    """A rank's shard of a divided parameter.

    A module with divided parameters has an attribute `shards`, a dict of Shard by parameter name.

    Attributes:
        axis: the ranks among which the parameter is divided.
        dim: the divided dimension. None: the first rank has all of the parameter.
        sizes: the size of each rank's shard. If the parameter consists of several `parts` that are
            divided separately, the sizes are those of the first part.
        parts: the relative sizes of the parts, such as (1, 1, 1) for queries, keys and values in
            one matrix.
    """

    axis: Axis
    dim: int | None
    sizes: tuple[int, ...] = ()
    parts: tuple[int, ...] = (1,)

    def extent(self, whole: int) -> int:
        """Return this rank's share of an extent."""
        return sum(number for _, number in self.places(whole))

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """Return this rank's shard of a whole tensor: a view, or a new tensor if several parts.

        Raises ValueError if the tensor cannot be divided in this way.
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
        """Return the whole tensor from the shards of all ranks, in order."""
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
        """Return the position and number of this rank's rows in the whole, for each part."""
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
