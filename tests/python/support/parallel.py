"""Models that are divided among ranks, compared with one process."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

import horoscale.torch as hvd
import horoscale.torch.parallel as par

# On 8 ranks they say nothing that they don't on 4.
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
    """A mesh that exists within the context, and double precision, with the same numbers drawn."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    made = par.init(**extents)
    try:
        yield made
    finally:
        torch.set_default_dtype(torch.float32)
        made.close()


def whole(tensor: torch.Tensor | None, shard: par.Shard | None) -> torch.Tensor | None:
    """The tensor of which this is a rank's shard."""
    if shard is None or shard.axis.set is None:
        return tensor
    said = hvd.allgather_object(tensor, process_set=shard.axis.set)
    return shard.whole(said)


def whole_tensors(model: nn.Module, gradients: bool = False) -> dict[str, torch.Tensor]:
    """All parameters of a divided model, or their gradients, as one process has them."""
    shards = {}
    for prefix, module in model.named_modules():
        for name, shard in getattr(module, "shards", {}).items():
            shards[f"{prefix}.{name}".lstrip(".")] = shard
    own = dict(model.named_parameters(remove_duplicate=False))
    found = {}
    for name in sorted({*own, *shards}):
        parameter = own.get(name)
        value = parameter.grad if gradients and parameter is not None else parameter
        joined = whole(None if value is None else value.detach(), shards.get(name))
        if joined is not None:
            found[name] = joined
    return found


def load(model: nn.Module, single: nn.Module) -> None:
    """Give a divided model the values of a whole one, whose parameters have the same names."""
    values = dict(single.named_parameters(remove_duplicate=False))
    shards = {}
    for prefix, module in model.named_modules():
        for name, shard in getattr(module, "shards", {}).items():
            shards[f"{prefix}.{name}".lstrip(".")] = shard
    with torch.no_grad():
        for name, parameter in model.named_parameters(remove_duplicate=False):
            value = values[name]
            parameter.copy_(shards[name].of(value) if name in shards else value)


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
    """Train a step on each batch; the losses."""
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)


def same_training(
    single: nn.Module,
    divided: nn.Module,
    loss_of: Loss,
    batches: list[torch.Tensor],
    divided_loss: Loss | None = None,
) -> None:
    """Both learn the same in a step of AdamW on each batch: losses, gradients and parameters."""
    load(divided, single)
    single = copy.deepcopy(single)
    expected = train(single, adamw(single), loss_of, batches)
    got = train(divided, adamw(divided), divided_loss or loss_of, batches)
    torch.testing.assert_close(torch.tensor(got), torch.tensor(expected), **EXACT)
    for gradients in (True, False):
        theirs = {
            name: one.grad if gradients else one.detach()
            for name, one in single.named_parameters(remove_duplicate=False)
        }
        close(whole_tensors(divided, gradients), theirs)
