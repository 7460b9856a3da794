"""Layers of models that are divided over ranks."""

from horoscale.torch.parallel.context import (
    position_ids,
    ring_attention,
    shard_sequence,
    ulysses_attention,
    unshard_sequence,
)

__all__ = [
    "position_ids",
    "ring_attention",
    "shard_sequence",
    "ulysses_attention",
    "unshard_sequence",
]
