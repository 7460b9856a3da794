"""ZeRO: gradients, optimizer state and parameters divided among ranks. See docs/zero.md."""

from horoscale.torch.parallel.zero.flat import FlatShards, Owned, Place
from horoscale.torch.parallel.zero.optimizer import ZeroOptimizer
from horoscale.torch.parallel.zero.sharded import (
    Sharded,
    gathered,
    shard,
    sharded_in,
    sharded_of,
    unshard,
)

__all__ = [
    "FlatShards",
    "Owned",
    "Place",
    "Sharded",
    "ZeroOptimizer",
    "gathered",
    "shard",
    "sharded_in",
    "sharded_of",
    "unshard",
]
