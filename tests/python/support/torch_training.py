"""A small training, by all ranks together or by one process with all batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import horoscale.torch as hvd

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, MakeOptimizer] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
}
sgd = OPTIMIZERS["sgd"]
STEPS = 4


def make_model() -> nn.Module:
    """The same model on every rank, in float64 to permit tight comparisons."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The inputs and targets of a rank."""
    random = torch.Generator().manual_seed(1000 * step + rank)
    return (
        torch.randn(4, 6, generator=random, dtype=torch.float64),
        torch.randn(4, 3, generator=random, dtype=torch.float64),
    )


def loss_of(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    """The loss of a rank's batch."""
    x, y = batch(step, rank)
    return nn.functional.mse_loss(model(x), y)


def train_alone(
    make_optimizer: MakeOptimizer, steps: int = STEPS, passes: int = 1, ranks: int | None = None
) -> nn.Module:
    """The result of one process with the batches of all ranks at once."""
    model = make_model()
    optimizer = make_optimizer(list(model.parameters()))
    ranks = hvd.size() if ranks is None else ranks
    for step in range(steps):
        optimizer.zero_grad()
        for i in range(passes):
            losses = [loss_of(model, step * passes + i, rank) for rank in range(ranks)]
            (sum(losses) / ranks).backward()
        optimizer.step()
    return model


def assert_same_parameters(model: nn.Module, expected: nn.Module) -> None:
    """Compare up to rounding."""
    for (name, one), other in zip(model.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one, other, msg=lambda text, name=name: f"{name}: {text}")


def wrap(model: nn.Module, make: MakeOptimizer = sgd, **options: Any) -> Any:
    """The distributed optimizer of a model."""
    optimizer = make(list(model.parameters()))
    return hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)
