"""Pipelines that fail: every rank learns what was wrong, and where."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import horoscale.torch as hvd
import horoscale.torch.parallel as par

mse = nn.functional.mse_loss


@pytest.fixture
def axis() -> par.Axis:
    ranks = tuple(range(hvd.size()))
    return par.Axis("pp", ranks, hvd.rank(), hvd.global_process_set if hvd.size() > 1 else None)


def pipeline(axis: par.Axis, stages: list[nn.Module] | None = None, **options: Any) -> par.Pipeline:
    if stages is None:
        stages = [nn.Linear(4, 4) for _ in range(axis.size)]
    return par.Pipeline(stages, axis, **({"loss": mse, "microbatches": 3} | options))


class Narrow(nn.Module):
    """Refuses what has more than so many rows."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.rows = rows

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] < self.rows:
            raise ValueError("too narrow")
        return self.inner(x)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
@pytest.mark.parametrize("where", ["first", "last"])
def test_a_stage_that_gets_another_shape(schedule: str, where: str, axis: par.Axis) -> None:
    broken = 0 if where == "first" else axis.size - 1
    stages = [nn.Linear(4, 4) for _ in range(axis.size)]
    stages[broken] = nn.Linear(5, 4)
    pipe = pipeline(axis, stages, schedule=schedule)
    x = torch.ones(6, 4)
    expected = (
        rf"^rank {broken}: stage {broken} failed at microbatch 0, forward, with float32\[2, 4\]: "
        r"RuntimeError: .*shapes"
    )
    with pytest.raises(par.PipelineError, match=expected):
        pipe.step(x, x)
    with pytest.raises(par.PipelineError, match=rf"has failed before: rank {broken}: stage"):
        pipe.step(x, x)
    assert torch.isfinite(pipeline(axis).step(x, x))  # another one works


@pytest.mark.usefixtures("need_ranks")
def test_the_microbatch_is_named(axis: par.Axis) -> None:
    stages = [Narrow(0) for _ in range(axis.size)]
    stages[1] = Narrow(2)
    pipe = pipeline(axis, stages)
    x = torch.ones(5, 4)  # 2 and 2 rows, then 1
    with pytest.raises(
        par.PipelineError, match=r"rank 1: stage 1 failed at microbatch 2, .*narrow"
    ):
        pipe.step(x, x)


class BadGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("no gradient today")


class NoGradient(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return BadGradient.apply(self.inner(x))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
def test_a_backward_pass_that_fails(schedule: str, axis: par.Axis) -> None:
    """A rank that has done its part by then hears of it in its next step."""
    stages = [nn.Linear(4, 4) for _ in range(axis.size)]
    stages[0] = NoGradient()
    pipe = pipeline(axis, stages, schedule=schedule)
    x = torch.ones(6, 4)

    def two_steps() -> None:
        pipe.step(x, x)
        pipe.step(x, x)

    expected = r"rank 0: stage 0 failed at microbatch 0, backward: ArithmeticError: no gradient"
    with pytest.raises(par.PipelineError, match=expected):
        two_steps()


def test_a_loss_that_fails(axis: par.Axis) -> None:
    last = axis.size - 1
    pipe = pipeline(axis, loss=lambda output, target: output - target)
    x = torch.ones(3, 4)
    expected = rf"rank {last}: stage {last} .*no scalar, but has the shape \[1, 4\]"
    with pytest.raises(par.PipelineError, match=expected):
        pipe.step(x, x)


def test_batches_that_are_wrong(axis: par.Axis) -> None:
    x = torch.ones(6, 4)
    pipe = pipeline(axis)
    here = ValueError if axis.rank == 0 else par.PipelineError
    with pytest.raises(here, match="x is needed on this rank"):
        pipe.step(None, x)
    pipe = pipeline(axis)
    with pytest.raises(here, match=r"x has 2 rows, too few for 3 microbatches"):
        pipe.step(x[:2], x)
    pipe = pipeline(axis)
    here = ValueError if axis.rank == axis.size - 1 else par.PipelineError
    with pytest.raises(here, match="target is needed on this rank"):
        pipe.step(x)
    pipe = pipeline(axis, loss=None)
    with pytest.raises(here, match="no loss function"):
        pipe.step(x, x)


@pytest.mark.usefixtures("need_ranks")
def test_ranks_that_disagree(axis: par.Axis) -> None:
    x = torch.ones(6, 4)
    own = {"schedule": "gpipe", "microbatches": 2} if axis.rank == 1 else {"schedule": "1f1b"}
    expected = r"rank 0: schedule='1f1b', microbatches=3; rank 1: schedule='gpipe', microbatches=2"
    with pytest.raises(hvd.MismatchError, match=expected):
        pipeline(axis, **own).step(x, x)
    stages: list[Any] = [nn.Linear(4, 4) for _ in range(axis.size)]
    stages[0] = nn.Linear(4, 5 if axis.rank == 0 else 4)
    with pytest.raises(hvd.MismatchError, match=r"rank 0: stage 0='2 parameters: weight\[5, 4\]"):
        pipeline(axis, stages).step(x, x)
    assert torch.isfinite(pipeline(axis).step(x, x))


def test_arguments(axis: par.Axis) -> None:
    if axis.size > 1:
        with pytest.raises(ValueError, match=f"{axis.size + 1} stages can't be divided among"):
            pipeline(axis, [nn.Linear(4, 4)] * (axis.size + 1))
    with pytest.raises(ValueError, match=r"None: only stages of other ranks may be"):
        pipeline(axis, [None] * axis.size)
    with pytest.raises(TypeError, match=r"is no module: 3"):
        pipeline(axis, [lambda: 3] * axis.size)
    with pytest.raises(ValueError, match="reduction='max' is neither"):
        pipeline(axis, reduction="max")
    with pytest.raises(ValueError, match=r"tied=\(9, 'weight'\): there are"):
        pipeline(axis, tied=[[(9, "weight"), (0, "weight")]])


def test_tied_parameters_that_can_not_be(axis: par.Axis) -> None:
    with pytest.raises(ValueError, match=r"stage 0 has no such parameter|stage \d+ has no such"):
        pipeline(axis, tied=[[(stage, "nothing") for stage in range(axis.size)]])
    if axis.size == 1:
        return
    stages = [nn.Linear(4, 4), *(nn.Linear(4, 2) for _ in range(axis.size - 1))]
    pipe = pipeline(axis, stages, tied=[[(0, "weight"), (-1, "weight")]])
    with pytest.raises(hvd.MismatchError, match=r"shape of tied .*\[4, 4\]"):
        pipe.step(torch.ones(6, 4), torch.ones(6, 2))
