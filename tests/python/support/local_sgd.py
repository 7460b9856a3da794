"""Local SGD on all ranks of a job, computed by one process, tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from support.torch_training import MakeOptimizer, loss_of, make_model
from torch import nn

import horoscale.torch as hvd

MakeOuter = Callable[[list[torch.Tensor]], torch.optim.Optimizer]
OUTER: dict[str, MakeOuter | None] = {
    "none": None,
    "nesterov": lambda tensors: torch.optim.SGD(tensors, lr=0.7, momentum=0.9, nesterov=True),
    "adam": lambda tensors: torch.optim.Adam(tensors, lr=0.05),
}


def train_alone(
    make_optimizer: MakeOptimizer,
    make_outer: MakeOuter | None,
    rounds: Sequence[Sequence[int]],
    weights: Sequence[float] | None = None,
    loss: Callable[[nn.Module, int, int], torch.Tensor] = loss_of,
) -> nn.Module:
    """Each rank's model at the end of rounds, which list the steps of each rank.

    `weights` are factors of the ranks' changes.
    """
    ranks = range(len(rounds[0]))
    models = [make_model() for _ in ranks]
    optimizers = [make_optimizer(list(model.parameters())) for model in models]
    shared = [one.detach().clone() for one in models[0].parameters()]
    outer = make_outer(shared) if make_outer else None
    taken = [0 for _ in ranks]
    for steps in rounds:
        for rank in ranks:
            for step in range(taken[rank], taken[rank] + steps[rank]):
                optimizers[rank].zero_grad()
                loss(models[rank], step, rank).backward()
                optimizers[rank].step()
            taken[rank] += steps[rank]
        for i, anchor in enumerate(shared):
            values = [list(model.parameters())[i].detach() for model in models]
            changes = [anchor - value for value in values]
            if weights is not None:
                changes = [one * weight for one, weight in zip(changes, weights, strict=True)]
            anchor.grad = sum(changes) / len(changes)
            if outer is None:  # the average itself, without computing changes
                anchor.copy_(anchor - anchor.grad if weights else sum(values) / len(values))
        if outer is not None:
            outer.step()
        with torch.no_grad():
            for model in models:
                for one, anchor in zip(model.parameters(), shared, strict=True):
                    one.copy_(anchor)
    return models[0]


def same_rounds(steps: int, every: int, ranks: int) -> list[list[int]]:
    """Rounds of `every` steps on all ranks, and the remaining steps."""
    lengths = [every] * (steps // every) + ([steps % every] if steps % every else [])
    return [[length] * ranks for length in lengths]


def train(model: nn.Module, optimizer: Any, steps: range) -> None:
    """Take these steps, with this rank's batches."""
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        optimizer.step()


def assert_alike(model: nn.Module, expected: nn.Module) -> None:
    """Compare float64 parameters up to the rounding of a few operations."""
    for (name, one), other in zip(model.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(
            one, other, rtol=1e-12, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}"
        )


def assert_same_bits(model: nn.Module) -> None:
    """All ranks have the same parameters. Collective."""
    for name, one in model.named_parameters():
        everywhere = hvd.allgather(one.detach().reshape(1, -1).contiguous().view(torch.uint8))
        assert (everywhere == everywhere[0]).all(), name
