"""Pipelines that fail: every rank's error names the cause and the rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import horoscale.torch as hvd
import horoscale.torch.parallel as par
from horoscale.torch.parallel.pipeline import frames, links
from horoscale.torch.parallel.pipeline.tied import TiedParameter

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
    """Rejects inputs with more than this many rows."""

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
    """A rank that has already done its part sees the error in its next step."""
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


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inner(x), x


@pytest.mark.usefixtures("need_ranks")
def test_shared_memory_that_runs_out(axis: par.Axis, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error arrives instead of the tensors, even if others arrived before."""
    pipe = pipeline(axis, [Two() for _ in range(axis.size)], loss=lambda out, y: mse(out[0], y))
    x = torch.ones(6, 4)
    for _ in range(3):  # afterwards the next ranks request frames of this size
        pipe.step(x, x)

    def empty_shared(*size: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        raise hvd.HorovodInternalError("no shared memory is left")

    if axis.rank == 0:
        monkeypatch.setattr(links, "empty_shared", empty_shared)
    here = MemoryError if axis.rank == 0 else par.PipelineError
    with pytest.raises(here, match="no shared memory is left"):
        pipe.step(torch.ones(60, 4), torch.ones(60, 4))


class Read:
    """A completed send."""

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        pass


def test_slots_grow_with_the_shapes() -> None:
    ring = links.Ring()
    for size in (64, 128, 256, 512, 128):
        pair = [torch.full((size + one,), float(one)) for one in range(2)]
        slots = [ring.take([tensor], [True]) for tensor in pair]
        for slot, tensor in zip(slots, pair, strict=True):
            [copy] = frames.layout_in(frames.header_of(slot.frame)).views(slot.frame)
            assert copy is not None
            assert torch.equal(copy, tensor)
            slot.handle = Read()
    assert len(ring) == 2


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


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_a_step_without_gradients(off: Any, axis: par.Axis) -> None:
    """Even if only one rank has disabled them."""
    x = torch.ones(6, 4)
    pipe = pipeline(axis)
    with off(), pytest.raises((RuntimeError, par.PipelineError), match=r"step\(\) trains, but"):
        pipe.step(x, x)
    pipe = pipeline(axis)
    here = RuntimeError if axis.rank == 0 else par.PipelineError
    with torch.set_grad_enabled(axis.rank != 0), pytest.raises(here, match=r"step\(\) trains, but"):
        pipe.step(x, x)


def test_tied_values_that_can_not_be_set(axis: par.Axis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks without the parameter get the error as well."""
    pipe = pipeline(axis, tied=[[(0, "weight"), (0, "weight")]])

    def fail(_: TiedParameter) -> None:
        raise ArithmeticError("no value")

    monkeypatch.setattr(TiedParameter, "spread_value", fail)
    here = ArithmeticError if axis.rank == 0 else par.PipelineError
    x = torch.ones(6, 4)
    with pytest.raises(here, match="no value"):
        pipe.step(x, x)
    with pytest.raises(par.PipelineError, match=r"failed before: .*no value"):
        pipe.step(x, x)


def ends_tied(axis: par.Axis, **options: Any) -> par.Pipeline:
    return pipeline(axis, tied=[[(0, "weight"), (-1, "weight")]], **options)


@pytest.mark.usefixtures("need_ranks")
@pytest.mark.parametrize("method", ["spread_value", "end"])
@pytest.mark.parametrize("where", [0, -1])
def test_a_rank_that_fails_before_it_sends_a_tied_value(
    method: str, where: int, axis: par.Axis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank that waits for it gets the error, and passes it on to ranks that wait for it."""
    failing = where % axis.size
    pipe = ends_tied(axis)

    def fail(_: TiedParameter) -> None:
        raise ArithmeticError("no value")

    if axis.rank == failing:
        monkeypatch.setattr(TiedParameter, method, fail)
    x = torch.ones(6, 4)

    def two_steps() -> None:  # ranks without a copy have already done their part of the first one
        pipe.step(x, x)
        pipe.step(x, x)

    here = ArithmeticError if axis.rank == failing else par.PipelineError
    with pytest.raises(here, match=r"no value") as raised:
        two_steps()
    if axis.rank != failing:
        assert str(raised.value) == f"rank {failing}: ArithmeticError: no value"


@pytest.mark.usefixtures("need_ranks")
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_a_stage_that_fails_while_another_waits_for_a_tied_gradient(
    schedule: str, axis: par.Axis
) -> None:
    """The last stage has finished its microbatches when the first one fails."""
    stages = [nn.Linear(4, 4) for _ in range(axis.size)]
    failed = "no gradient for the last microbatch"

    def fail(gradient: torch.Tensor) -> None:
        nonlocal passed
        passed += 1
        if passed == 3:
            raise ArithmeticError(failed)

    passed = 0
    pipe = ends_tied(axis, stages=stages, schedule=schedule)
    if axis.rank == 0:
        stages[0].bias.register_hook(fail)
    x = torch.ones(6, 4)

    def two_steps() -> None:
        pipe.step(x, x)
        pipe.step(x, x)

    expected = rf"^rank 0: stage 0 failed at microbatch 2, backward: ArithmeticError: {failed}$"
    first = axis.rank in (0, axis.size - 1)  # have copies
    with pytest.raises(par.PipelineError, match=expected):
        pipe.step(x, x) if first else two_steps()


@pytest.mark.usefixtures("need_ranks")
def test_tied_copies_of_which_one_is_frozen(axis: par.Axis) -> None:
    pipe = ends_tied(axis)
    if axis.rank == 0:
        pipe.stages[0].weight.requires_grad_(False)  # after the pipeline was created
    names = rf"\[\(0, 'weight'\), \({axis.size - 1}, 'weight'\)\]"
    expected = rf"rank 0: frozen tied {names}=True; .*rank {axis.size - 1}: .*=False"
    with pytest.raises(hvd.MismatchError, match=expected):
        pipe.step(torch.ones(6, 4), torch.ones(6, 4))


def test_tied_copies_of_one_rank_of_which_one_is_frozen(axis: par.Axis) -> None:
    stages = [nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(axis.size)]
    pipe = pipeline(axis, stages, tied=[[(0, "0.weight"), (0, "1.weight")]])
    if axis.rank == 0:
        stages[0][1].weight.requires_grad_(False)
    here = ValueError if axis.rank == 0 else par.PipelineError
    with pytest.raises(here, match=r"\[\(0, '0.weight'\), \(0, '1.weight'\)\].* some are frozen"):
        pipe.step(torch.ones(6, 4), torch.ones(6, 4))


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
