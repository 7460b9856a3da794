"""Checkpoints, clipping and scaling of models with divided training state."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.parallel import MARKS
from support.zero import Half, batch, make, reference, same, sharded, world
from torch import nn

import horoscale.torch as hvd
import horoscale.torch.parallel as par
from horoscale.torch.parallel.zero import sharded_of

pytestmark = MARKS

STAGES = pytest.mark.parametrize("stage", [1, 2, 3])
SHARED = pytest.mark.parametrize("shared", [True, False], ids=["shared", "own memory"])


@pytest.fixture
def mesh() -> Iterator[par.Mesh]:
    made = par.init()
    yield made
    made.close()


def step(model: nn.Module, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    model(batch(number)).backward()
    optimizer.step()


def adamw(model: nn.Module) -> Any:
    return par.ZeroOptimizer(torch.optim.AdamW, model, lr=0.01)


@STAGES
@SHARED
def test_own_part_of_the_state(stage: int, shared: bool) -> None:
    model = make()
    with sharded(model, stage, shared=shared):
        optimizer = adamw(model)
        step(model, optimizer, 0)
        weights, state = par.whole_state_dict(model), copy.deepcopy(optimizer.state_dict())
        step(model, optimizer, 1)
        after = par.whole_state_dict(model)
        par.load_whole_state_dict(model, weights)
        again = adamw(model)
        again.load_state_dict(state)
        step(model, again, 1)
        for name, value in par.whole_state_dict(model).items():
            assert torch.equal(value, after[name]), name
        state["zero"]["rank"] = 7
        with pytest.raises(ValueError, match=f"of rank=7, but this is rank {hvd.rank()} of"):
            again.load_state_dict(state)
        plain = torch.optim.AdamW(nn.Linear(1, 1).parameters()).state_dict()
        with pytest.raises(ValueError, match="not the state of a ZeroOptimizer"):
            again.load_state_dict(plain)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2), (2, 1)])
def test_the_whole_state_goes_to_another_division(before: int, after: int) -> None:
    """Like that of one process's optimizer, by name."""
    model = make(torch.float64)
    alone, averaging = reference(model, torch.optim.AdamW, lr=0.01)
    other = copy.deepcopy(model)
    with sharded(model, before, bucket_bytes=9_000):
        optimizer = adamw(model)
        for number in range(2):
            step(alone, averaging, number)
            step(model, optimizer, number)
        weights, state = par.whole_state_dict(model), optimizer.whole_state_dict()
        names = {id(one): name for name, one in alone.named_parameters()}
        for parameter, of_one in averaging.state.items():
            assert state["state"][names[id(parameter)]].keys() == of_one.keys()
            for key, value in of_one.items():
                assert torch.equal(state["state"][names[id(parameter)]][key], value)
    half = par.Axis.of(None)  # each rank on its own
    for axis in (world(), half):
        one = copy.deepcopy(other)
        with sharded(one, after, axis=axis, shared=False):
            par.load_whole_state_dict(one, weights)
            again = adamw(one)
            again.load_whole_state_dict(state)
            if axis.set is not None:
                expected = copy.deepcopy(alone)
                theirs = torch.optim.AdamW(
                    [two for two in expected.parameters() if two.requires_grad], lr=0.01
                )
                theirs.load_state_dict(copy.deepcopy(averaging.state_dict()))
                theirs = hvd.DistributedOptimizer(theirs, expected.named_parameters())
                step(expected, theirs, 2)
                step(one, again, 2)
                same(one, expected)


def test_a_whole_state_that_does_not_fit() -> None:
    model = make()
    with sharded(model, 1, axis=par.Axis.of(None)):
        optimizer = adamw(model)
        step(model, optimizer, 0)
        state = optimizer.whole_state_dict()
        wrong = copy.deepcopy(state)
        wrong["state"]["blocks.0.up.weight"]["exp_avg"] = torch.zeros(3, 3)
        with pytest.raises(ValueError, match=r"exp_avg of blocks.0.up.weight is \(3, 3\) in the"):
            optimizer.load_whole_state_dict(wrong)
        wrong = copy.deepcopy(state)
        wrong["param_groups"][0]["params"].remove("table.weight")
        with pytest.raises(KeyError, match=r"table\.weight"):
            optimizer.load_whole_state_dict(wrong)
        with pytest.raises(ValueError, match="has 0 parameter groups, the optimizer 1"):
            optimizer.load_whole_state_dict({"state": {}, "param_groups": []})


def test_masters_reach_parameters_that_some_ranks_own_nothing_of() -> None:
    """All ranks wait for the values, including those with an empty part of such a small model."""
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    other = copy.deepcopy(model)
    with sharded(model, 1, dtype=torch.bfloat16):
        optimizer = adamw(model)
        model(torch.ones(2, 5)).sum().backward()
        optimizer.step()
        state = optimizer.whole_state_dict()
    with sharded(other, 1):  # the parameters themselves are optimized
        adamw(other).load_whole_state_dict(state)
        for name, value in par.whole_state_dict(other).items():
            assert torch.equal(value, state["state"][name]["master"]), name


def test_the_state_of_a_parameter_without_dimensions() -> None:
    """Its moments have the shape of the step counter."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.scale = nn.Parameter(torch.tensor(2.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.layer(x) * self.scale).square().sum()

    def trained(optimizer: Any) -> dict[str, torch.Tensor]:
        optimizer.zero_grad()
        model(torch.ones(2, 4)).backward()
        optimizer.step()
        return par.whole_state_dict(model)

    torch.manual_seed(0)
    model = Scaled()
    with sharded(model, 1):
        optimizer = adamw(model)
        weights = trained(optimizer)
        state = optimizer.whole_state_dict()
        expected = trained(optimizer)
        par.load_whole_state_dict(model, weights)
        again = adamw(model)
        again.load_whole_state_dict(state)
        for name, value in trained(again).items():
            assert torch.equal(value, expected[name]), name


@STAGES
@SHARED
def test_state_dict_of_the_module(stage: int, shared: bool) -> None:
    model, other = make(), make()
    with torch.no_grad():
        for one in other.parameters():
            one.add_(1)
    with sharded(model, stage, shared=shared):
        optimizer = adamw(model)
        model.load_state_dict(other.state_dict())
        hvd.barrier()
        for name, value in model.state_dict().items():
            assert torch.equal(value, other.state_dict()[name]), name
        with par.gathered(model):
            assert torch.equal(model.blocks[0].up.weight, other.blocks[0].up.weight)
        alone, averaging = reference(other, torch.optim.AdamW, lr=0.01)
        step(alone, averaging, 0)
        step(model, optimizer, 0)
        same(model, alone)


def test_masters_follow_what_is_loaded() -> None:
    model = make()
    values = {name: torch.full_like(one, 1 / 3) for name, one in model.state_dict().items()}
    for stage in (1, 3):
        with sharded(model, stage, dtype=torch.bfloat16):
            par.load_whole_state_dict(model, values)
            optimizer = adamw(model)
            masters = optimizer.whole_state_dict()["state"]
            assert float(masters["table.weight"]["master"][0, 0]) == float(torch.tensor(1 / 3))
            saved = optimizer.state_dict()
            model.load_state_dict({name: one + 1 for name, one in values.items()})
            masters = optimizer.whole_state_dict()["state"]
            rounded = torch.tensor(4 / 3).bfloat16().float()
            assert (masters["table.weight"]["master"] == rounded).all()
            optimizer.load_state_dict(saved)
            assert (
                par.whole_state_dict(model)["table.weight"] == torch.tensor(1 / 3).bfloat16()
            ).all()
        model = model.float()


@STAGES
@pytest.mark.parametrize("norm_type", [2.0, 1.0, math.inf])
def test_clipping(stage: int, norm_type: float, mesh: par.Mesh) -> None:
    model = make(torch.float64)
    alone, averaging = reference(model, torch.optim.SGD, lr=0.1)
    with sharded(model, stage, axis=mesh.dp):
        optimizer = par.ZeroOptimizer(torch.optim.SGD, model, lr=0.1)
        for number in range(2):
            averaging.zero_grad()
            alone(batch(number)).backward()
            averaging.synchronize()
            expected = torch.nn.utils.clip_grad_norm_(
                [one for one in alone.parameters() if one.requires_grad], 0.01, norm_type
            )
            with averaging.skip_synchronize():
                averaging.step()
            optimizer.zero_grad()
            model(batch(number)).backward()
            norm = par.clip_grad_norm_(model, 0.01, mesh, norm_type)
            optimizer.step()
            torch.testing.assert_close(norm, expected, rtol=1e-12, atol=0)
        state = par.whole_state_dict(model)
        for name, value in alone.state_dict().items():
            torch.testing.assert_close(state[name], value, rtol=1e-10, atol=1e-12)


@STAGES
def test_an_overflow_in_a_shard_skips_the_step_on_all(stage: int, mesh: par.Mesh) -> None:
    model = make()
    alone, averaging = reference(model, torch.optim.AdamW, lr=0.01)
    with sharded(model, stage, axis=mesh.dp):
        optimizer = adamw(model)
        scaler = par.GradScaler(mesh, init_scale=1024.0)
        before = par.whole_state_dict(model)
        optimizer.zero_grad()
        scaler.scale(model(batch(0))).backward()
        optimizer.synchronize()
        if hvd.rank() == 0:  # owns some part of any parameters, however small
            _, part = next(sharded_of(model).parts_of_gradients())
            part[-1] = math.inf
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 512.0
        for name, value in par.whole_state_dict(model).items():
            assert torch.equal(value, before[name])
        plain = torch.amp.GradScaler("cpu", init_scale=512.0)
        for number in range(2):
            for one, of, by in ((alone, averaging, plain), (model, optimizer, scaler)):
                of.zero_grad()
                by.scale(one(batch(number))).backward()
                by.step(of)
                by.update()
        same(model, alone)


@STAGES
def test_looking_at_options_reduces_nothing(stage: int) -> None:
    """One rank may do so alone while the others start the next backward pass."""
    model = make(torch.float64)
    alone, averaging = reference(model, torch.optim.AdamW, lr=0.01)
    with sharded(model, stage):
        optimizer = adamw(model)
        for one, of in ((alone, averaging), (model, optimizer)):
            with of.no_sync():
                one(batch(0)).backward()
            if hvd.rank() == 0:
                assert of.param_groups[0]["lr"] == 0.01
            one(batch(1)).backward()
            of.step()
        same(model, alone)


@STAGES
def test_gradients_of_the_whole_model(stage: int) -> None:
    model = make()
    alone, averaging = reference(model, torch.optim.SGD, lr=0.1)
    with sharded(model, stage, unit=Half):
        alone(batch(0)).backward()
        averaging.synchronize()
        model(batch(0)).backward()
        gradients = par.whole_gradients(model)
        for name, parameter in alone.named_parameters(remove_duplicate=False):
            if parameter.grad is not None:
                assert torch.equal(gradients[name], parameter.grad), name
        assert "frozen.weight" not in gradients


def test_the_closure_computes_the_loss() -> None:
    model = make()
    alone, averaging = reference(model, torch.optim.SGD, lr=0.1)
    with sharded(model, 2):
        optimizer = par.ZeroOptimizer(torch.optim.SGD, model, lr=0.1)

        def closure_of(one: nn.Module, of: Any) -> Any:
            def closure() -> torch.Tensor:
                of.zero_grad()
                loss = one(batch(0))
                loss.backward()
                return loss

            return closure

        losses = [
            float(of.step(closure_of(one, of)).detach())
            for one, of in ((alone, averaging), (model, optimizer))
        ]
        assert losses[0] == losses[1]
        same(model, alone)


class Counting(torch.optim.SGD):
    """Stores a number for each of its parameters."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is not None:
                    count = self.state[one].setdefault("count", torch.zeros(()))
                    count += 1
                    one.sub_(one.grad, alpha=group["lr"] / float(count))


def test_numbers_of_parameters_that_are_numbers() -> None:
    """They are not mistaken for element-wise state of the parameters."""

    class Scalars(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slope = nn.Parameter(torch.tensor(2.0))
            self.offset = nn.Parameter(torch.tensor(1.0))

        def forward(self) -> torch.Tensor:
            return (self.slope * 3 + self.offset).square()

    model = Scalars()
    alone, averaging = reference(model, Counting, lr=0.01)
    state: Any = None
    for _ in range(2):
        with sharded(model, 1):
            optimizer = par.ZeroOptimizer(Counting, model, lr=0.01)
            if state is not None:
                optimizer.load_whole_state_dict(state)
            for one, of in ((alone, averaging), (model, optimizer)):
                of.zero_grad()
                one().backward()
                of.step()
            state = optimizer.whole_state_dict()
            same(model, alone)
    assert float(state["state"]["slope"]["count"]) == 2
    with sharded(model, 1):
        optimizer = par.ZeroOptimizer(torch.optim.AdamW, model)
        wrong = {
            "state": {"slope": {"exp_avg": torch.zeros(1)}},
            "param_groups": state["param_groups"],
        }
        with pytest.raises(
            ValueError, match=r"exp_avg of slope is \(1,\) in the state, the parameter"
        ):
            optimizer.load_whole_state_dict(wrong)
