"""Local SGD on all ranks of a job, computed by one process, tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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

__all__ = ["OUTER", "MakeOuter", "alike", "assert_same_bits", "make_model", "reference"]


def reference(
    make_optimizer: MakeOptimizer,
    make_outer: MakeOuter | None,
    rounds: Sequence[int],
    weights: Sequence[float] | None = None,
    loss: Callable[[nn.Module, int, int], torch.Tensor] = loss_of,
) -> nn.Module:
    """What rounds of so many steps give: a model for each rank, and their average.

    `weights` are factors of the ranks' changes.
    """
    ranks = range(hvd.size())
    weights = [1.0] * len(ranks) if weights is None else weights
    models = [make_model() for _ in ranks]
    optimizers = [make_optimizer(list(model.parameters())) for model in models]
    shared = [one.detach().clone() for one in models[0].parameters()]
    outer = make_outer(shared) if make_outer else None
    step = 0
    for steps in rounds:
        for rank, model, optimizer in zip(ranks, models, optimizers, strict=True):
            for own in range(steps):
                optimizer.zero_grad()
                loss(model, step + own, rank).backward()
                optimizer.step()
        step += steps
        if not steps:
            continue
        for i, anchor in enumerate(shared):
            values = [list(model.parameters())[i].detach() for model in models]
            if outer is None and set(weights) == {1.0}:
                anchor.copy_(sum(values) / len(values))
            else:
                changes = [(anchor - v) * w for v, w in zip(values, weights, strict=True)]
                anchor.grad = sum(changes) / len(changes)
                if outer is None:
                    anchor.sub_(anchor.grad)
        if outer is not None:
            outer.step()
        with torch.no_grad():
            for model in models:
                for one, anchor in zip(model.parameters(), shared, strict=True):
                    one.copy_(anchor)
    return models[0]


def alike(model: nn.Module, expected: nn.Module) -> None:
    """Compare float64 parameters up to the rounding of a few operations."""
    for (name, one), other in zip(model.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(
            one, other, rtol=1e-11, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}"
        )


def assert_same_bits(model: nn.Module) -> None:
    """All ranks have the same parameters. Collective."""
    for name, one in model.named_parameters():
        everywhere = hvd.allgather(one.detach().reshape(1, -1).contiguous().view(torch.uint8))
        assert (everywhere == everywhere[0]).all(), name
