"""Pipelines in mixed precision: scaled losses and autocast, as in one process."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import horoscale.torch as hvd
import horoscale.torch.parallel as par

FEATURES = 6
MICROBATCHES = 4
GREATEST = torch.finfo(torch.float16).max
SCHEDULES = ("gpipe", "1f1b", "zb-h1")
mse = nn.functional.mse_loss


@contextlib.contextmanager
def mesh(**axes: int) -> Iterator[par.Mesh]:
    made = par.init(**axes)
    try:
        yield made
    finally:
        made.close()


class OfFloat16(torch.autograd.Function):
    """A weight whose gradient has the range of float16, including overflow."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor) -> torch.Tensor:
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return torch.where(gradient.abs() > GREATEST, gradient * torch.inf, gradient)


class Stage(nn.Module):
    """A layer; if it `overflows`, with such a weight."""

    def __init__(self, overflows: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(FEATURES, FEATURES))
        self.overflows = overflows

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = OfFloat16.apply(self.weight) if self.overflows else self.weight
        return torch.tanh(nn.functional.linear(x, weight))


def stages(number: int, overflowing: int = -1) -> list[nn.Module]:
    torch.manual_seed(number)
    return [Stage(index == overflowing).double() for index in range(number)]


def batch(step: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(rows, FEATURES, dtype=torch.float64, generator=generator)
    return x, x.sin()


def alone(model: nn.Module, x: torch.Tensor, target: torch.Tensor, scale: float) -> torch.Tensor:
    """Run all microbatches of a step in one process."""
    total = torch.zeros((), dtype=x.dtype)
    for part, expected in zip(x.chunk(MICROBATCHES), target.chunk(MICROBATCHES), strict=True):
        loss = mse(model(part), expected) * (len(part) / len(x))
        (loss * scale).backward()
        total += loss.detach()
    return total


def overflowed(gradients: list[torch.Tensor]) -> bool:
    return not all(bool(one.isfinite().all()) for one in gradients)


def scaler_options() -> dict[str, Any]:
    """It grows until a gradient of about 0.01 overflows, then oscillates."""
    return {"init_scale": 2.0**21, "growth_interval": 2}


def steps_taken(scales: list[float]) -> tuple[bool, bool]:
    """Return whether any step was skipped, and whether the scale has grown."""
    pairs = list(itertools.pairwise(scales))
    return any(b < a for a, b in pairs), any(b > a for a, b in pairs)


@pytest.mark.usefixtures("need_ranks")
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("where", ["first", "last"])
def test_an_overflow_of_one_stage_skips_the_step_of_all(schedule: str, where: str) -> None:
    """Scale and weights equal those of one process, bit for bit, after each step."""
    with mesh(pp=hvd.size()) as made:
        overflowing = 0 if where == "first" else made.pp.size - 1
        pipe = par.Pipeline(
            stages(made.pp.size, overflowing),
            made.pp,
            loss=mse,
            schedule=schedule,
            microbatches=MICROBATCHES,
        )
        optimizer = torch.optim.AdamW(pipe.parameters(), 0.01)
        scaler = par.GradScaler(made, **scaler_options())
        model = nn.Sequential(*stages(made.pp.size, overflowing))
        reference = torch.optim.AdamW(model.parameters(), 0.01)
        reference_scaler = torch.amp.GradScaler("cpu", **scaler_options())
        scales = [scaler.get_scale()]
        for step in range(12):
            x, target = batch(step, 2 * MICROBATCHES)
            optimizer.zero_grad()
            reference.zero_grad()
            loss = pipe.step(x, target, scale=scaler.get_scale())
            assert torch.equal(loss, alone(model, x, target, reference_scaler.get_scale()))
            reference_scaler.scale(loss)  # must be called
            if made.pp.rank != overflowing:
                assert not overflowed([one.grad for one in pipe.parameters()])
            for one, optimized in ((scaler, optimizer), (reference_scaler, reference)):
                one.step(optimized)
                one.update()
            scales.append(scaler.get_scale())
            assert scaler.get_scale() == reference_scaler.get_scale()
            for number, stage in pipe.stages.items():
                assert torch.equal(stage.weight, model[number].weight)
        assert steps_taken(scales) == (True, True), scales


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_overflow_of_one_stage_and_replica_skips_the_step_of_all(schedule: str) -> None:
    """Gradients are averaged over dp first, so an infinite one affects all replicas."""
    if hvd.size() < 4 or hvd.size() % 2:
        pytest.skip("needs 4 ranks")
    with mesh(pp=2) as made:
        pipe = par.Pipeline(
            stages(2, 1), made.pp, loss=mse, schedule=schedule, microbatches=MICROBATCHES
        )
        optimizer = par.DistributedOptimizer(
            torch.optim.AdamW(pipe.parameters(), 0.01),
            pipe.module,
            made,
            backward_passes_per_step=MICROBATCHES,
        )
        scaler = par.GradScaler(made, **scaler_options())
        model = nn.Sequential(*stages(2, 1))
        reference = torch.optim.AdamW(model.parameters(), 0.01)
        reference_scaler = torch.amp.GradScaler("cpu", **scaler_options())
        scales = [scaler.get_scale()]
        seen_apart = False
        for step in range(12):
            optimizer.zero_grad()
            each = []  # replica's gradients; those of a single one may overflow
            for replica in range(made.dp.size):
                x, target = batch(made.dp.size * step + replica, 2 * MICROBATCHES)
                model.zero_grad()
                alone(model, x, target, reference_scaler.get_scale())
                each.append([one.grad for one in model.parameters()])
            for one, gradients in zip(model.parameters(), zip(*each, strict=True), strict=True):
                one.grad = torch.stack(gradients).mean(0)
            seen_apart |= 0 < sum(map(overflowed, each)) < len(each)
            x, target = batch(made.dp.size * step + made.dp.rank, 2 * MICROBATCHES)
            pipe.step(x, target, scale=scaler.get_scale())
            optimizer.synchronize()
            reference_scaler.scale(torch.ones(()))
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            reference_scaler.step(reference)
            scaler.update()
            reference_scaler.update()
            scales.append(scaler.get_scale())
            assert scaler.get_scale() == reference_scaler.get_scale(), step
            for number, stage in pipe.stages.items():
                torch.testing.assert_close(
                    stage.weight, model[number].weight, rtol=1e-12, atol=1e-14
                )
        assert steps_taken(scales) == (True, True), scales
        assert seen_apart


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_bfloat16_by_autocast(schedule: str) -> None:
    """Stages multiply and send 16-bit values; the bits equal those of one process."""
    with mesh(pp=hvd.size()) as made:
        types: list[torch.dtype] = []

        def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            types.append(output.dtype)
            return mse(output, target)

        def layers() -> list[nn.Module]:
            return [nn.Sequential(one, nn.Linear(6, 6)).float() for one in stages(made.pp.size)]

        torch.manual_seed(1)
        own = layers()
        torch.manual_seed(1)
        model = nn.Sequential(*layers())
        pipe = par.Pipeline(own, made.pp, loss=loss, schedule=schedule, microbatches=MICROBATCHES)
        optimizer = torch.optim.AdamW(pipe.parameters(), 0.01)
        reference = torch.optim.AdamW(model.parameters(), 0.01)
        for step in range(3):
            x, target = (one.float() for one in batch(step, 2 * MICROBATCHES))
            optimizer.zero_grad()
            reference.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                found = pipe.step(x, target)
            total = torch.zeros(())
            for part, expected in zip(
                x.chunk(MICROBATCHES), target.chunk(MICROBATCHES), strict=True
            ):
                with torch.autocast("cpu", torch.bfloat16):
                    one = mse(model(part), expected) / MICROBATCHES
                one.backward()  # outside, as PyTorch's documentation recommends
                total += one.detach()
            assert torch.equal(found, total)
            for number, stage in pipe.stages.items():
                for ours, theirs in zip(
                    stage.parameters(), model[number].parameters(), strict=True
                ):
                    assert ours.grad.dtype == torch.float32
                    assert torch.equal(ours.grad, theirs.grad)
            optimizer.step()
            reference.step()
        assert set(types) == ({torch.bfloat16} if pipe.is_last else set())
