"""Which rank writes what: each part of each tensor once, balanced among the ranks.

Each rank computes the same result from the contents of all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from horoscale.torch.parallel.checkpoint.contents import Contents
from horoscale.torch.parallel.checkpoint.errors import CheckpointError
from horoscale.torch.parallel.checkpoint.layout import Box, Extents
from horoscale.torch.parallel.checkpoint.model import clash


class HeldThere(NamedTuple):
    """A rank's description of a Held for the others."""

    keys: list[str]
    shape: Extents
    dtype: torch.dtype
    boxes: list[Box]
    stage: int
    is_tied: bool
    first_only: bool


class Told(NamedTuple):
    """A rank's description of its contents for the others, without the values."""

    tensors: list[HeldThere]
    values: list[list[str]]


class Tile(NamedTuple):
    """A part of a tensor that one rank writes: a part of one of its boxes."""

    rank: int
    box: Box
    of: Box


@dataclass
class Tensor:
    """A tensor of the checkpoint.

    Attributes:
        keys: its keys; it is written under the first one.
        shape: the shape of the whole tensor.
        dtype: its dtype.
        tiles: its parts, which cover all of it.
    """

    keys: list[str]
    shape: Extents
    dtype: torch.dtype
    tiles: list[Tile] = field(default_factory=list)


@dataclass
class Work:
    """Everything that the ranks write.

    Attributes:
        tensors: the tensors of the checkpoint by the key under which they are written.
        values: other values, likewise: their keys, and the rank that writes them.
    """

    tensors: dict[str, Tensor]
    values: dict[str, tuple[list[str], int]]


def tell(contents: Contents) -> Told:
    """Return a description of this rank's contents for the others."""
    return Told(
        [
            HeldThere(
                one.keys,
                one.shape,
                one.dtype,
                [piece.box for piece in one.pieces],
                one.stage,
                one.is_tied,
                one.first_only,
            )
            for one in contents.tensors
        ],
        [one.keys for one in contents.values],
    )


def share(told: Sequence[Told], tile_bytes: int | None) -> Work:
    """Divide the work among the ranks.

    Args:
        told: the description from each rank.
        tile_bytes: the maximum size of the parts into which tensors are divided, so that loading
            can skip other parts. None: they are not divided, and the first rank writes all it has.

    Raises:
        CheckpointError: the ranks' parts of a tensor do not cover it.
    """
    holders: dict[str, dict[Box, list[int]]] = {}
    firsts: dict[str, tuple[int, HeldThere]] = {}
    values: dict[str, tuple[list[str], int]] = {}
    for rank, one in enumerate(told):
        for held in one.tensors:
            key = held.keys[0]
            _check_alike(key, rank, held, *firsts.setdefault(key, (rank, held)))
            boxes = holders.setdefault(key, {})
            for box in held.boxes:
                boxes.setdefault(box, []).append(rank)
        for keys in one.values:
            values.setdefault(keys[0], (keys, rank))
    tensors = {key: Tensor(held.keys, held.shape, held.dtype) for key, (_, held) in firsts.items()}
    for key, boxes in holders.items():
        _check_whole(tensors[key], list(boxes))
    _deal(tensors, holders, {key for key, (_, one) in firsts.items() if one.first_only}, tile_bytes)
    return Work(tensors, values)


def _check_alike(key: str, rank: int, held: HeldThere, other: int, first: HeldThere) -> None:
    if held.stage != first.stage and not (held.is_tied and first.is_tied):
        name = key.partition(".")[2]
        raise CheckpointError(clash(name, first.stage, held.stage))
    for what in ("shape", "dtype"):
        own, others = getattr(held, what), getattr(first, what)
        if own != others:
            raise CheckpointError(
                f"{key} has the {what} {own} on rank {rank}, and {others} on rank {other}"
            )


def _check_whole(tensor: Tensor, boxes: list[Box]) -> None:
    for position, one in enumerate(boxes):
        for other in boxes[:position]:
            if one.intersection(other):
                raise CheckpointError(
                    f"{tensor.keys[0]}: ranks have parts that overlap, {one} and {other}"
                )
    there, needed = sum(one.numel for one in boxes), Box.of_all(tensor.shape).numel
    if there != needed:
        raise CheckpointError(
            f"{tensor.keys[0]}: the ranks together have {there} of its {needed} elements"
        )


def _deal(
    tensors: dict[str, Tensor],
    holders: dict[str, dict[Box, list[int]]],
    first_only: set[str],
    tile_bytes: int | None,
) -> None:
    """Assign each tile to the rank that holds it and has the least to write."""
    loads: dict[int, int] = {}
    # Parts that only one rank can write come first.
    parts = [(ranks, key, box) for key, boxes in holders.items() for box, ranks in boxes.items()]
    for ranks, key, box in sorted(parts, key=lambda one: len(one[0])):
        tensor = tensors[key]
        may = ranks[:1] if key in first_only or tile_bytes is None else ranks
        size = tensor.dtype.itemsize
        largest = box.numel if tile_bytes is None else max(1, tile_bytes // size)
        for tile in box.tiles(largest):
            rank = min(may, key=lambda one: loads.get(one, 0))
            loads[rank] = loads.get(rank, 0) + tile.numel * size
            tensor.tiles.append(Tile(rank, tile, box))
