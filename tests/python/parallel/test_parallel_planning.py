"""Plans are applied: each way trains as one process does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.parallel import EXACT, MARKS
from support.planning_models import (
    PLAN,
    TRANSFORMER_PLAN,
    cross_entropy,
    make_batch,
    make_model,
)
from torch import nn

import horoscale.torch as hvd
import horoscale.torch.parallel as par
from horoscale.torch.parallel.planning.dry_run import MakeOptimizer
from horoscale.torch.parallel.planning.machine import Link, Machine

pytestmark = MARKS

STEPS = 3
MACHINE = Machine(1e10, 1e10, 2, Link(1e-5, 1e9), Link(1e-5, 1e9), None, None, 0.0)


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    """Double precision; no mesh is left."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def batch_of(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch whose rows are divisible by every number of ranks."""
    x, target = make_batch(kind)
    x = x.double() if x.is_floating_point() else x
    return x[:24], target[:24]


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, eps=1e-5)


def alone(kind: str, tie: bool) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The losses and parameters of one process."""
    model, (x, target) = made(kind, tie), batch_of(kind)
    optimizer = adamw(list(model.parameters()))
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, dict(model.state_dict())


def made(kind: str, tie: bool) -> nn.Sequential:
    model = make_model(kind)
    if tie:
        model[-1].weight = model[0].weight
    return model


def plan_of(kind: str, tie: bool, make: MakeOptimizer = adamw) -> par.Planned:
    return par.plan(
        made(kind, tie),
        batch_of(kind),
        loss=cross_entropy,
        optimizer=make,
        tensor_parallel=TRANSFORMER_PLAN if kind == "transformer" else PLAN,
        microbatches=[2],
        machine=MACHINE,
    )


def trained(planned: par.Planned, choice: int, kind: str) -> tuple[list[float], nn.Module]:
    """The losses of the whole batch, and this rank's stage."""
    mesh = planned.apply(choice)
    pipe = planned.pipeline(mesh)
    number = planned.costs[choice].strategy.microbatches
    optimizer = par.DistributedOptimizer(
        adamw(list(pipe.parameters())), pipe.module, mesh, backward_passes_per_step=number
    )
    x, target = (one.chunk(mesh.dp.size)[mesh.dp.rank] for one in batch_of(kind))
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = pipe.step(x, target, sync_tied=False)
        optimizer.synchronize()
        pipe.sync_tied()
        with optimizer.skip_synchronize():
            optimizer.step()
        axis = mesh.dp
        if axis.set is not None:
            loss = hvd.allreduce(loss.reshape(1), op=hvd.Average, process_set=axis.set)
        losses.append(float(loss))
    return losses, pipe.module


def choices(planned: par.Planned) -> list[int]:
    """One of each kind, by the extents of the axes and by recomputation."""
    kinds: dict[tuple[object, ...], int] = {}
    for index, one in enumerate(planned.costs):
        strategy = one.strategy
        kinds.setdefault((strategy.tp, strategy.pp, strategy.dp, strategy.recompute), index)
    return list(kinds.values())


@pytest.mark.parametrize(("kind", "tie"), [("mlp", False), ("transformer", True)])
def test_every_way_trains_as_one_process(kind: str, tie: bool) -> None:
    expected, state = alone(kind, tie)
    whole = plan_of(kind, tie)
    numbers = choices(whole)
    assert len(numbers) >= 4
    for choice in numbers:
        planned = replace(whole, model=made(kind, tie))
        losses, module = trained(planned, choice, kind)
        assert losses == pytest.approx(expected, rel=EXACT["rtol"]), planned.costs[choice].strategy
        for name, value in par.whole_state_dict(module).items():
            full = name.partition(".")[2]  # after the number of the stage
            torch.testing.assert_close(value, state[full], **EXACT)
        par.current_mesh().close()


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("axes", [("dp",), ("pp", "dp")], ids="-".join)
def test_state_is_divided_as_planned(stage: int, axes: tuple[str, ...]) -> None:
    expected, state = alone("mlp", tie=False)
    whole = par.plan(
        made("mlp", tie=False),
        batch_of("mlp"),
        loss=cross_entropy,
        axes=axes,
        stages=[stage],
        microbatches=[2],
        machine=MACHINE,
    )
    for choice, cost in enumerate(whole.costs):
        if cost.strategy.stage == 0:  # dp is 1
            continue
        planned = replace(whole, model=made("mlp", tie=False))
        mesh = planned.apply(choice)
        pipe = planned.pipeline(mesh)
        optimizer = par.ZeroOptimizer(torch.optim.AdamW, pipe.module, lr=0.01, eps=1e-5)
        x, target = (one.chunk(mesh.dp.size)[mesh.dp.rank] for one in batch_of("mlp"))
        for of_step in expected:
            optimizer.zero_grad()
            loss = pipe.step(x, target)
            optimizer.step()
            mean = hvd.allreduce(loss.reshape(1), op=hvd.Average, process_set=mesh.dp.set)
            assert float(mean) == pytest.approx(of_step, rel=EXACT["rtol"])
        for name, value in par.whole_state_dict(pipe.module).items():
            torch.testing.assert_close(value, state[name.partition(".")[2]], **EXACT)
        par.unshard(pipe.module)
        mesh.close()


def test_the_state_of_what_units_share_is_not_divided() -> None:
    planned = par.plan(
        made("transformer", tie=True), batch_of("transformer"), loss=cross_entropy, axes=["dp"],
        stages=[3], microbatches=[1], machine=MACHINE,
    )  # fmt: skip
    if hvd.size() > 1:
        with pytest.raises(ValueError, match=r"stage=3.*units share"):
            planned.apply()


def test_this_job_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    machine = par.calibrate(seconds=1.0)
    assert machine.flops > 0
    assert machine.message.bandwidth > 0
    assert machine.collective.latency > 0
    assert machine.message_between is None
    assert bool(machine.groups) == (hvd.size() > 1)
    assert all(one.averages.bandwidth > 0 for one in machine.groups)
    assert machine.overheads.microbatch >= 0
    assert 0 <= machine.overlap <= 1
    assert hvd.allgather_object(machine) == [machine] * hvd.size()
    assert par.calibrate(seconds=1.0) == machine  # as stored on the first rank
    planned = par.plan(
        make_model("mlp"), batch_of("mlp"), loss=cross_entropy, machine=machine, microbatches=[1]
    )
    ranking = [one.strategy for one in planned.costs]
    assert hvd.allgather_object(ranking) == [ranking] * hvd.size()


def test_plans_for_other_numbers_of_ranks_cannot_be_applied() -> None:
    planned = par.plan(
        make_model("mlp"), batch_of("mlp"), loss=cross_entropy, machine=MACHINE,
        ranks=hvd.size() * 2, microbatches=[1], axes=["dp"],
    )  # fmt: skip
    with pytest.raises(ValueError, match=f"but there are {hvd.size()}"):
        planned.apply()
    with pytest.raises(ValueError, match="choice=99"):
        planned.apply(99)
    with pytest.raises(RuntimeError, match=r"call apply\(\) first"):
        planned.pipeline(None)


def test_every_rank_reports_its_memory() -> None:
    model, (x, target) = made("transformer", tie=False), batch_of("transformer")
    planned = par.plan(
        model, (x, target), loss=cross_entropy, axes=["dp"], recompute=[False], microbatches=[1],
        machine=MACHINE,
    )  # fmt: skip
    mesh = planned.apply()
    pipe = planned.pipeline(mesh)
    optimizer = par.DistributedOptimizer(adamw(list(pipe.parameters())), pipe.module, mesh)
    rows = x.chunk(mesh.dp.size)[mesh.dp.rank], target.chunk(mesh.dp.size)[mesh.dp.rank]
    for _ in range(2):
        with par.watch_memory(pipe.module, optimizer) as watch:
            optimizer.zero_grad()
            pipe.step(*rows)
            optimizer.step()
    said = par.memory(made("transformer", tie=False), (x, target), mesh, loss=cross_entropy)
    assert watch.peak is not None
    assert watch.peak.parameters == said.ranks[0].parameters
    assert watch.peak.optimizer == said.ranks[0].optimizer
    # A pipeline scales each microbatch's loss, which saves slightly more.
    assert watch.peak.activations == pytest.approx(said.ranks[0].activations, rel=0.02)
    lines = watch.report(said).splitlines()
    assert sum(line.startswith("rank ") for line in lines) == hvd.size()
    assert sum("predicted" in line for line in lines) == hvd.size()
    par.current_mesh().close()
