"""A small model that ranks on several hosts train, and comparisons of the results."""

from __future__ import annotations

from typing import Any

import torch

import horoscale.torch as hvd


def model() -> torch.nn.Module:
    """The same model on all ranks."""
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.LayerNorm(128), torch.nn.Linear(128, 16)
    )


def train(optimizer: Any, network: torch.nn.Module, steps: int, seed: int = 0) -> float:
    """Train on this rank's data; return the last loss."""
    data = torch.Generator().manual_seed(seed + hvd.rank())
    teacher = torch.randn(64, 16, generator=torch.Generator().manual_seed(99)) / 8
    for _ in range(steps):
        inputs = torch.randn(32, 64, generator=data)
        optimizer.zero_grad()
        loss = (network(inputs) - inputs @ teacher).square().mean()
        loss.backward()
        optimizer.step()
    return float(hvd.allreduce(loss.detach()))


def weights_of(network: torch.nn.Module) -> torch.Tensor:
    """All of them."""
    return torch.cat([one.detach().flatten() for one in network.parameters()])


def same_everywhere(network: torch.nn.Module) -> bool:
    """Whether all ranks have the same weights, bit by bit."""
    own = weights_of(network)
    return all(torch.equal(one, own) for one in hvd.allgather(own[None]))
