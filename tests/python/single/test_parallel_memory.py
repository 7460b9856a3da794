"""watch_memory()'s counts for a step, compared with par.memory()'s predictions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from support.planning_models import Block, Half, cross_entropy
from torch import nn

import horoscale.torch.parallel as par
from horoscale.torch.parallel.mesh import Axis
from horoscale.torch.parallel.pipeline import Pipeline

WIDTH = 64


class Twice(nn.Module):
    """A convolution, a norm and what autograd saves of them, at two sizes."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 2 * channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(2 * channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(F.relu(self.norm(self.first(x))), 2)


def made(kind: str) -> tuple[nn.Sequential, tuple[torch.Tensor, torch.Tensor]]:
    """A model large enough for single numbers not to matter, and a batch."""
    torch.manual_seed(3)
    if kind == "mlp":
        model = nn.Sequential(*(Half(WIDTH, 4 * WIDTH) for _ in range(4)), nn.Linear(WIDTH, 10))
        return model, (torch.randn(64, WIDTH), torch.randint(10, (64,)))
    if kind == "convolutions":
        model = nn.Sequential(Twice(3), Twice(6), Twice(12), nn.Flatten(), nn.Linear(384, 10))
        return model, (torch.randn(16, 3, 32, 32), torch.randint(10, (16,)))
    words = torch.randint(100, (8, 32))
    layers = [Block(WIDTH) for _ in range(3)]
    head = nn.Linear(WIDTH, 100)
    return nn.Sequential(nn.Embedding(100, WIDTH), *layers, head), (words, words.roll(-1, 1))


@pytest.mark.parametrize("kind", ["mlp", "convolutions", "transformer"])
@pytest.mark.parametrize("microbatches", [1, 4])
def test_a_step_takes_what_was_said(kind: str, microbatches: int) -> None:
    model, (x, target) = made(kind)
    said = par.memory(model, (x, target), {}, loss=cross_entropy, microbatches=microbatches)
    axis = Axis("pp", (0,), 0)
    pipe = Pipeline([model], axis, loss=cross_entropy, microbatches=microbatches)
    optimizer = torch.optim.AdamW(pipe.parameters())
    for _ in range(2):
        with par.watch_memory(pipe.module, optimizer) as watch:
            optimizer.zero_grad()
            pipe.step(x, target)
            optimizer.step()
    seen = watch.peak
    assert seen is not None
    (own,) = said.ranks
    assert seen.parameters == own.parameters
    assert seen.gradients == own.gradients
    assert seen.optimizer == own.optimizer
    if microbatches == 1:
        assert seen.activations == own.activations
    # It is unknown which activations of a unit with convolutions are freed first.
    tolerance = 0.1 if kind == "convolutions" else 0.03
    assert seen.total - seen.buckets == pytest.approx(own.total, rel=tolerance)
    text = watch.report(said)
    assert "rank 0" in text
    assert "predicted" in text


def test_nothing_was_watched() -> None:
    with pytest.raises(RuntimeError, match="has to end"), par.watch_memory(nn.Linear(2, 2)) as one:
        one.report()
