"""Parallel pipelines, whose gradients are averaged over a data-parallel axis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import horoscale.torch as hvd
import horoscale.torch.parallel as par

MICROBATCHES = 4
WORDS, FEATURES = 11, 8


@pytest.fixture
def mesh() -> Iterator[par.Mesh]:
    if hvd.size() < 4 or hvd.size() % 2:
        pytest.skip("needs 4 ranks")
    mesh = par.init(pp=2)
    yield mesh
    mesh.close()


class Table(nn.Module):
    """An embedding, or its logits."""

    def __init__(self, back: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WORDS, FEATURES))
        self.back = back

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.t() if self.back else self.weight[x]


def stages() -> list[nn.Module]:
    torch.manual_seed(4)
    first = nn.Sequential(Table(False), nn.Linear(FEATURES, FEATURES), nn.Tanh())
    last = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Tanh(), Table(True))
    return [first.double(), last.double()]


@pytest.mark.conformance
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
@pytest.mark.parametrize("tied", [False, True])
def test_with_a_distributed_optimizer(schedule: str, tied: bool, mesh: par.Mesh) -> None:
    pipe = par.Pipeline(
        stages(),
        mesh.pp,
        loss=nn.functional.cross_entropy,
        schedule=schedule,
        microbatches=MICROBATCHES,
        tied=[[(0, "0.weight"), (-1, "2.weight")]] if tied else [],
    )
    optimizer = par.DistributedOptimizer(
        torch.optim.AdamW(pipe.parameters(), 0.01),
        pipe.module,
        mesh,
        backward_passes_per_step=MICROBATCHES,
    )
    alone = nn.Sequential(*stages())
    if tied:
        alone[1][2].weight = alone[0][0].weight
    reference = torch.optim.AdamW(alone.parameters(), 0.01)
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        tokens, target = torch.randint(WORDS, (2, 8 * mesh.dp.size), generator=generator)
        own = slice(8 * mesh.dp.rank, 8 * mesh.dp.rank + 8)
        optimizer.zero_grad()
        loss = pipe.step(tokens[own], target[own], sync_tied=not tied)
        # Started in the backward passes of the last microbatch, while other stages were computing.
        assert optimizer._reducer.in_flight
        loss = hvd.allreduce(loss, process_set=mesh.dp.set)
        reference.zero_grad()
        expected = nn.functional.cross_entropy(alone(tokens), target)
        expected.backward()
        assert torch.allclose(loss, expected.detach(), 1e-12)
        optimizer.synchronize()
        if tied:
            pipe.sync_tied()
        for number, stage in pipe.stages.items():
            for ours, theirs in zip(stage.parameters(), alone[number].parameters(), strict=True):
                assert torch.allclose(ours.grad, theirs.grad, 1e-10, 1e-14)
        norm = par.clip_grad_norm_(pipe.module, 0.5, mesh, exclude=pipe.tied_copies)
        whole = nn.utils.clip_grad_norm_(alone.parameters(), 0.5)
        assert torch.allclose(norm, whole, 1e-10)
        with optimizer.skip_synchronize():
            optimizer.step()
        reference.step()


class Held(torch.autograd.Function):
    """In a step's last backward pass, waits for a number from another rank."""

    left = 0
    source = -1
    received: list[int]

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        Held.left -= 1
        if Held.left == 0:
            number = torch.zeros((), dtype=torch.int64)
            Held.received.append(int(hvd.recv(number, Held.source, TAG)))
        return gradient


class FirstStage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(FEATURES, FEATURES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Held.apply(self.inner(x))


TAG = 77


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
def test_reductions_while_another_stage_is_at_work(schedule: str, mesh: par.Mesh) -> None:
    """Those of the last stage are done before the first stage's last backward pass begins."""
    pipe = par.Pipeline(
        [FirstStage, lambda: nn.Sequential(*(nn.Linear(FEATURES, FEATURES) for _ in range(3)))],
        mesh.pp,
        loss=nn.functional.mse_loss,
        schedule=schedule,
        microbatches=MICROBATCHES,
    )
    optimizer = par.DistributedOptimizer(
        torch.optim.SGD(pipe.parameters(), 0.1),
        pipe.module,
        mesh,
        backward_passes_per_step=MICROBATCHES,
    )
    Held.source, Held.received = mesh.pp.next, []
    x = torch.ones(2 * MICROBATCHES, FEATURES)
    for step in range(2):
        optimizer.zero_grad()
        Held.left = MICROBATCHES
        pipe.step(x, x)
        begun = [group.in_flight for group in optimizer._reducer.groups]
        assert all(begun)
        optimizer.synchronize()
        if pipe.is_last:  # the first stage is in the middle of its step
            hvd.send(torch.tensor(len(begun)), mesh.pp.prev, TAG)
        else:
            assert len(Held.received) == step + 1
            assert Held.received[-1] >= 1
        with optimizer.skip_synchronize():
            optimizer.step()
