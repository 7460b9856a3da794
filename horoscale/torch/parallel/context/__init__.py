"""Attention over a sequence that is divided among the ranks of an axis."""

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
