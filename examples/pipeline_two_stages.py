"""Trains a model in two stages on two ranks, which exchange activations and gradients.

    horoscalerun -np 2 python examples/pipeline_two_stages.py

Rank 0 runs the first stage, rank 1 the second one and the loss. At the end rank 1 trains both
alone, and the weights are bitwise identical:

    loss 0.5154; the same weights as in one process: True
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

import horoscale.torch as hvd

STEPS, BATCH, FEATURES, HIDDEN = 30, 64, 32, 128


def make_stages() -> list[nn.Module]:
    """Create both stages, with the same weights on all ranks."""
    torch.manual_seed(1)
    first = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh())
    return [first, nn.Linear(HIDDEN, 1)]


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the inputs and targets of a step."""
    inputs = torch.randn(BATCH, FEATURES, generator=torch.Generator().manual_seed(step))
    return inputs, inputs.sum(dim=1, keepdim=True).sin()


def train_stage(stage: nn.Module, rank: int) -> float:
    """Train one stage together with the other rank; return the last loss."""
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.05)
    loss = torch.zeros(())
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs, targets = batch(step)
        if rank == 0:
            hvd.send(stage(inputs), dst=1).backward()  # receives the gradient
        else:
            activations = hvd.recv(torch.empty(BATCH, HIDDEN, requires_grad=True), src=0)
            loss = nn.functional.mse_loss(stage(activations), targets)
            loss.backward()  # sends the gradient
        optimizer.step()
    return loss.item()


def train_alone(model: nn.Module) -> None:
    """Train all stages in this process."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs, targets = batch(step)
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()


def main() -> None:
    """Train on two ranks, then in one process, and compare."""
    argparse.ArgumentParser(description=__doc__).parse_args()  # has no options
    hvd.init()
    if hvd.size() != 2:
        raise SystemExit("needs 2 ranks: horoscalerun -np 2 python pipeline_two_stages.py")
    torch.set_num_threads(1)  # the ranks share the cores
    stage = make_stages()[hvd.rank()]
    loss = train_stage(stage, hvd.rank())
    if hvd.rank() == 0:
        hvd.send_object(stage.state_dict(), dst=1)
    else:
        stages = make_stages()
        train_alone(nn.Sequential(*stages))
        pairs = zip(
            [hvd.recv_object(src=0), stage.state_dict()],
            [one.state_dict() for one in stages],
            strict=True,
        )
        same = all(torch.equal(ours[key], alone[key]) for ours, alone in pairs for key in alone)
        print(f"loss {loss:.4f}; the same weights as in one process: {same}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
