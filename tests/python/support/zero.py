"""Models divided by par.shard(), compared with undivided ones under hvd.DistributedOptimizer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

import horoscale.torch as hvd
import horoscale.torch.parallel as par

FEATURES = 33  # not a multiple of the alignment


class Half(nn.Module):
    """A residual half of a block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Model(nn.Module):
    """Blocks, one of them used twice; a tied table; a frozen and an unused parameter."""

    def __init__(self, width: int = FEATURES, words: int = 7) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Half(width) for _ in range(3))
        self.frozen = nn.Linear(width, width)
        self.frozen.requires_grad_(False)
        self.unused = nn.Linear(5, 3)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.table.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.table(words)
        for block in (*self.blocks, self.blocks[0]):
            x = block(x)
        return nn.functional.cross_entropy(self.head(self.frozen(x)), words.roll(1, 0))


def make(dtype: torch.dtype = torch.float32) -> Model:
    torch.manual_seed(3)
    return Model().to(dtype)


def world() -> par.Axis:
    return par.Axis.of(hvd.global_process_set, "dp")


def batch(step: int, rank: int | None = None, samples: int = 6) -> torch.Tensor:
    """The batch of a step, different on each rank."""
    own = hvd.rank() if rank is None else rank
    return torch.randint(7, (samples,), generator=torch.Generator().manual_seed(100 * step + own))


@contextmanager
def sharded(model: nn.Module, stage: int, **options: Any) -> Iterator[nn.Module]:
    """A model that is sharded within the context."""
    if stage == 3:
        options.setdefault("unit", Half)
    par.shard(model, options.pop("axis", None) or world(), stage, **options)
    try:
        yield model
    finally:
        par.unshard(model)


def reference(
    model: nn.Module, factory: Callable[..., torch.optim.Optimizer], **options: Any
) -> tuple[nn.Module, Any]:
    """A copy of a model, and an optimizer that trains it equally on all ranks."""
    alone = copy.deepcopy(model)
    optimizer = factory([one for one in alone.parameters() if one.requires_grad], **options)
    return alone, hvd.DistributedOptimizer(optimizer, alone.named_parameters())


def same(sharded: nn.Module, alone: nn.Module) -> None:
    """Both have the same parameters, bit for bit."""
    state = par.whole_state_dict(sharded)
    expected = alone.state_dict()
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(state[name], value), name
