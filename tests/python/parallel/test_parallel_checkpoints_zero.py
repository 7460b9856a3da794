"""Checkpoints with training state divided by element, from and to other programs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.parallel import MARKS, mesh
from support.parallel_checkpoints import OneProcess, OnMesh, adamw, layers_of
from torch import nn

import horoscale.torch as hvd
import horoscale.torch.parallel as par

pytest.importorskip("horoscale.torch.parallel.zero")

pytestmark = MARKS

EXACT = {"rtol": 1e-12, "atol": 1e-12}
STAGES = (1, 2, 3)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that all ranks share, created by the first one and removed at the end."""
    yield Path(hvd.broadcast_object(str(tmp_path))) / "checkpoints"
    hvd.barrier()


class WithZero(OnMesh):
    """The same training, with its state divided among the ranks of dp."""

    def __init__(self, made: par.Mesh, stage: int, shared: bool = True, **options: Any) -> None:
        super().__init__(made)
        for name, value in options.items():
            setattr(self, name, value)
        self.model = nn.Sequential(layers_of(made.tp))
        groups = adamw(self.model).param_groups
        par.shard(self.model, made.dp, stage, unit="block*", shared=shared)
        self.optimizer = par.ZeroOptimizer(
            torch.optim.AdamW,
            self.model,
            params=[{"params": g["params"], "weight_decay": g["weight_decay"]} for g in groups],
            lr=0.01,
            eps=1e-5,
        )

    def whole(self) -> dict[str, torch.Tensor]:
        return par.whole_state_dict(self.model)


def finished(training: OnMesh, end: OneProcess, losses: list[float]) -> None:
    """Train two more steps, as one process did."""
    for number, expected in zip((2, 3), losses, strict=True):
        torch.testing.assert_close(training.step(number), expected, **EXACT)
    whole = end.model.state_dict()
    for name, value in training.whole().items():
        torch.testing.assert_close(value, whole[name], **EXACT)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("stage", STAGES)
def test_training_goes_on_in_any_stage_and_without(stage: int, shared: bool, folder: Path) -> None:
    if hvd.size() == 3:
        pytest.skip("3 ranks can't have the same number of 32 samples")
    extents = {"tp": 2} if hvd.size() == 4 else {"dp": hvd.size()}
    with mesh(**extents) as made:
        end = OneProcess()
        begin = {name: one.clone() for name, one in end.model.state_dict().items()}
        losses = [end.step(number) for number in range(4)][2:]
        training = WithZero(made, stage, shared)
        training.load_whole(begin)
        for number in range(2):
            training.step(number)
        par.save(folder, training.model, training.optimizer, made)
        for other in STAGES:
            again = WithZero(made, other, shared)
            par.load(folder, again.model, again.optimizer, made)
            finished(again, end, losses)
        plain = OnMesh(made)
        par.load(folder, plain.model, plain.optimizer, made)
        path = par.save(folder / "plain", plain.model, plain.optimizer, made).wait()
        finished(plain, end, losses)
        par.load(path, training.model, training.optimizer, made)
        finished(training, end, losses)


def test_each_rank_writes_what_it_owns(folder: Path) -> None:
    with mesh(dp=hvd.size()) as made:
        model = par.shard(nn.Linear(256, 256), made.dp, 1)
        optimizer = par.ZeroOptimizer(torch.optim.AdamW, model)
        model(torch.ones(2, 256)).sum().backward()
        optimizer.step()
        path = par.save(folder, model, optimizer, made).wait()
        sizes = [one.stat().st_size for one in path.glob("*.distcp")]
        assert len(sizes) == hvd.size()
        assert max(sizes) < 1.2 * min(sizes)
        assert sum(sizes) < 1.1 * 3 * 8 * 256 * 257


def test_masters_of_smaller_weights(folder: Path) -> None:
    """The checkpoint contains the master weights at full precision."""
    with mesh(dp=hvd.size()) as made:
        model = nn.Linear(16, 16)
        par.shard(model, made.dp, 2, dtype=torch.bfloat16)
        optimizer = par.ZeroOptimizer(torch.optim.SGD, model, lr=0.001)
        model(torch.ones(2, 16)).sum().backward()
        optimizer.step()
        expected = optimizer.whole_state_dict()["state"]
        par.save(folder, model, optimizer, made)
        whole = nn.Linear(16, 16)
        par.load(folder, whole, mesh=made)
        assert torch.equal(whole.weight, expected["weight"]["master"])
        with torch.no_grad():
            whole.weight.add_(1.0)
        par.save(folder, whole, torch.optim.SGD(whole.parameters(), lr=0.5), made)
        par.load(folder, model, optimizer, made)
        assert torch.equal(optimizer.whole_state_dict()["state"]["weight"]["master"], whole.weight)
        assert torch.equal(model.weight, whole.weight.to(torch.bfloat16))
        assert optimizer.param_groups[0]["lr"] == 0.5


def test_the_step_of_a_parameter_that_is_a_number(folder: Path) -> None:
    class Scaled(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 4)
            self.scale = nn.Parameter(torch.tensor(2.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * self.scale

    with mesh(dp=hvd.size()) as made:
        model = Scaled()
        par.shard(model, made.dp, 1)
        optimizer = par.ZeroOptimizer(torch.optim.AdamW, model)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        par.save(folder, model, optimizer, made)
        par.load(folder, model, optimizer, made)
        assert all(state["step"].shape == () for state in optimizer.state.values())
        assert all(state["step"] == 1 for state in optimizer.state.values())
