"""Attention over a sequence that the ranks of an axis divide."""

from horoscale.torch.parallel.context.layouts import (
    position_ids,
    shard_sequence,
    unshard_sequence,
)
from horoscale.torch.parallel.context.ring import ring_attention
from horoscale.torch.parallel.context.ulysses import ulysses_attention

__all__ = [
    "position_ids",
    "ring_attention",
    "shard_sequence",
    "ulysses_attention",
    "unshard_sequence",
]
