"""Models that are divided among ranks, compared with one process."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

import horoscale.torch.parallel as par

# On 8 ranks these add nothing to the tests on 4.
MARKS = [
    pytest.mark.conformance,
    pytest.mark.skipif(
        os.environ.get("HOROSCALE_SIZE") not in ("2", "3", "4"), reason="on 2 to 4 ranks"
    ),
]

EXACT = {"rtol": 1e-10, "atol": 1e-12}

Loss = Callable[[nn.Module, torch.Tensor], torch.Tensor]


@contextmanager
def mesh(**extents: object) -> Iterator[par.Mesh]:
    """A mesh for the context, with double precision and a fixed random seed."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    made = par.init(**extents)
    try:
        yield made
    finally:
        torch.set_default_dtype(torch.float32)
        made.close()


def close(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    """Both have the same names and values."""
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(
            ours[name], value, **EXACT, msg=lambda text, name=name: f"{name}: {text}"
        )


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss_of: Loss, batches: list[torch.Tensor]
) -> list[float]:
    """Train a step on each batch; return the losses."""
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """With an eps for which gradients that are only rounding errors (biases of keys) stay tiny."""
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1, eps=1e-5)


def named(model: nn.Module) -> dict[str, torch.Tensor]:
    return dict(model.named_parameters(remove_duplicate=False))


def same_training(
    single: nn.Module,
    divided: nn.Module,
    loss_of: Loss,
    batches: list[torch.Tensor],
    divided_loss: Loss | None = None,
) -> None:
    """Both learn the same in a step of AdamW on each batch: losses, gradients and parameters."""
    par.load_whole_state_dict(divided, single.state_dict())
    single = copy.deepcopy(single)
    expected = train(single, adamw(single), loss_of, batches)
    got = train(divided, adamw(divided), divided_loss or loss_of, batches)
    same_state(single, divided, expected, got)


def same_state(
    single: nn.Module, divided: nn.Module, expected: list[float], got: list[float]
) -> None:
    """After their training: losses, gradients and parameters."""
    torch.testing.assert_close(torch.tensor(got), torch.tensor(expected), **EXACT)
    gradients = {name: one.grad for name, one in named(single).items() if one.grad is not None}
    close(par.whole_gradients(divided), gradients)
    close(par.whole_state_dict(divided), dict(single.state_dict()))
