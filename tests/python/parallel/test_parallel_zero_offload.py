"""Training state on a disk: the same bits as without, and no files are left behind."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from support.parallel import MARKS
from support.zero import FEATURES, Half, Model, batch, make, reference, same, sharded, world
from torch import nn

import horoscale.torch as hvd
import horoscale.torch.parallel as par
from horoscale.torch.parallel.offload import direct
from horoscale.torch.parallel.offload import store as stores
from horoscale.torch.parallel.zero import sharded_of, streaming

pytestmark = MARKS

STAGES = pytest.mark.parametrize("stage", [1, 2, 3])
OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], dict[str, Any]]] = {
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "amsgrad": (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several pieces per unit, with boundaries inside parameters."""
    monkeypatch.setattr(streaming, "CHUNK_BYTES", 2 * direct.ALIGNMENT)


def step(model: nn.Module, optimizer: Any, number: int) -> None:
    optimizer.zero_grad()
    model(batch(number)).backward()
    optimizer.step()


def on_disk(tmp_path: Path) -> dict[str, Any]:
    return {"offload": "disk", "offload_folder": tmp_path}


@STAGES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", list(OPTIMIZERS))
def test_same_bits(stage: int, dtype: torch.dtype, kind: str, tmp_path: Path) -> None:
    factory, options = OPTIMIZERS[kind]
    model = make(dtype)
    alone, averaging = reference(model, factory, **options)
    with sharded(model, stage, bucket_bytes=20_000, **on_disk(tmp_path)):
        optimizer = par.ZeroOptimizer(factory, model, **options)
        assert isinstance(optimizer, factory)
        for number in range(3):
            step(alone, averaging, number)
            step(model, optimizer, number)
        assert not list(tmp_path.iterdir())  # the file has no name
        same(model, alone)
    same(model, alone)


@STAGES
def test_master_weights(stage: int, tmp_path: Path) -> None:
    """As without a disk: the whole state and the parameters."""
    states = []
    for options in ({"shared": False}, on_disk(tmp_path)):
        model = make()
        with sharded(model, stage, dtype=torch.bfloat16, **options):
            optimizer = par.ZeroOptimizer(torch.optim.AdamW, model, lr=0.01)
            for number in range(3):
                step(model, optimizer, number)
            states.append((par.whole_state_dict(model), optimizer.whole_state_dict()["state"]))
    (weights, state), (others, other) = states
    for name, value in weights.items():
        assert torch.equal(value, others[name]), name
    assert state.keys() == other.keys()
    for name, values in state.items():
        for key, value in values.items():
            assert torch.equal(value, other[name][key]), (name, key)


def test_parameters_of_a_larger_dtype_than_the_masters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces have memory for both."""
    monkeypatch.setattr(stores, "CHUNK_BYTES", 2 * direct.ALIGNMENT)
    states = []
    for options in ({"shared": False}, on_disk(tmp_path)):
        model = make(torch.bfloat16)
        with sharded(model, 3, dtype=torch.float32, **options):
            optimizer = par.ZeroOptimizer(torch.optim.SGD, model, lr=0.1, momentum=0.9)
            for number in range(2):
                step(model, optimizer, number)
            states.append(par.whole_state_dict(model))
    weights, others = states
    for name, value in weights.items():
        assert torch.equal(value, others[name]), name


def test_nothing_of_it_is_in_memory(tmp_path: Path) -> None:
    model = make()
    with sharded(model, 3, **on_disk(tmp_path)):
        optimizer = par.ZeroOptimizer(torch.optim.AdamW, model, lr=0.01)
        step(model, optimizer, 0)
        of_model = sharded_of(model)
        assert of_model.store is not None
        ranges = [
            (area.tensor.data_ptr(), area.tensor.data_ptr() + area.tensor.nbytes)
            for area in of_model.store._areas
        ]
        idle = [one.own for one in (*of_model.trained, *of_model.frozen)]
        idle += [one.gradient for one in of_model.gradients.buckets if one.gradient is not None]
        moments = [v for of in optimizer.state.values() for v in of.values() if v.dim()]
        has_some = any(run.tensor.numel() for of_group in optimizer.runs for run in of_group)
        assert bool(moments) == has_some  # with many ranks, one may have nothing
        assert len(moments) <= 2 * len(of_model.trained)
        for one in (*idle, *moments):
            assert any(begin <= one.data_ptr() < end for begin, end in ranges)
        assert not any(one.resident for one in (*of_model.trained, *of_model.frozen))


@STAGES
def test_groups_a_scheduler_hooks_and_accumulated_gradients(stage: int, tmp_path: Path) -> None:
    model = make()
    alone, _ = reference(model, torch.optim.SGD, lr=1.0)

    def groups(of: Model) -> list[dict[str, Any]]:
        trained = [one for one in of.parameters() if one.requires_grad]
        return [
            {"params": [one for one in trained if one.dim() > 1], "weight_decay": 0.5},
            {"params": [one for one in trained if one.dim() <= 1], "lr": 0.3},
        ]

    averaging = hvd.DistributedOptimizer(
        torch.optim.AdamW(groups(alone), lr=0.01), alone.named_parameters()
    )
    called = []
    with sharded(model, stage, **on_disk(tmp_path)):
        optimizer = par.ZeroOptimizer(torch.optim.AdamW, model, params=groups(model), lr=0.01)
        optimizer.register_step_post_hook(lambda *_: called.append(1))
        schedulers = [
            torch.optim.lr_scheduler.StepLR(one, 1, gamma=0.5) for one in (averaging, optimizer)
        ]
        for number in range(3):
            for one, of in ((alone, averaging), (model, optimizer)):
                of.zero_grad()
                with of.no_sync():
                    one(batch(number)).backward()
                one(batch(number + 10)).backward()
                of.step()
            for scheduler in schedulers:
                scheduler.step()
        assert len(called) == 3  # rather than once per piece
        same(model, alone)


def test_gradients_that_are_clipped_and_added_up(tmp_path: Path) -> None:
    """Through the page cache, which must agree with the disk."""
    results = []
    with closing(par.init()) as mesh:
        for options in ({"shared": False}, on_disk(tmp_path)):
            model = make(torch.float64)
            with sharded(model, 3, **options):
                optimizer = par.ZeroOptimizer(torch.optim.AdamW, model, lr=0.1)
                for number in range(3):
                    optimizer.zero_grad()
                    for one in range(2):  # averages accumulate
                        model(batch(10 * number + one)).backward()
                    par.clip_grad_norm_(model, 0.1, mesh)
                    optimizer.step()
                results.append(par.whole_state_dict(model))
    for name, value in results[0].items():
        assert torch.equal(value, results[1][name]), name


def test_steps_counted_in_a_group(tmp_path: Path) -> None:
    """An optimizer's counter for a group increases once per step, not once per piece."""

    class Counting(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                group["steps"] = group.get("steps", 0) + 1
                for one in group["params"]:
                    if one.grad is not None:
                        one.sub_(one.grad, alpha=group["lr"] / group["steps"])

    model = make()
    alone, averaging = reference(model, Counting, lr=0.1)
    with sharded(model, 3, **on_disk(tmp_path)):
        optimizer = par.ZeroOptimizer(Counting, model, lr=0.1)
        for number in range(3):
            step(alone, averaging, number)
            step(model, optimizer, number)
        assert optimizer.param_groups[0]["steps"] == 3
        same(model, alone)


@STAGES
@pytest.mark.parametrize("way", ["own", "whole", "files"])
def test_states_are_saved_and_loaded(stage: int, way: str, tmp_path: Path) -> None:
    """Into a model that is not on a disk, and back."""
    folder = Path(str(hvd.broadcast_object(str(tmp_path), 0)))
    alone, averaging = reference(make(), torch.optim.AdamW, lr=0.01)
    saved: Any = None
    for number, options in enumerate((on_disk(tmp_path), {"shared": False}, on_disk(tmp_path))):
        model = make()
        with sharded(model, stage, **options):
            optimizer = par.ZeroOptimizer(torch.optim.AdamW, model, lr=0.01)
            if number and way == "files":
                par.load(folder / "saved", model, optimizer)
            elif number:
                par.load_whole_state_dict(model, saved[0])
                load = optimizer.load_whole_state_dict
                (optimizer.load_state_dict if way == "own" else load)(saved[1])
            step(alone, averaging, number)
            step(model, optimizer, number)
            same(model, alone)
            if way == "files":
                par.save(folder / "saved", model, optimizer)
            else:
                whole = optimizer.whole_state_dict
                state = optimizer.state_dict() if way == "own" else whole()
                saved = par.whole_state_dict(model), _copied(state)


def _copied(state: Any) -> Any:
    return torch.utils._pytree.tree_map(
        lambda one: one.clone() if isinstance(one, torch.Tensor) else one, state
    )


@STAGES
def test_a_model_on_meta(stage: int, tmp_path: Path) -> None:
    """Is initialized unit by unit, with the same values on all ranks."""
    with torch.device("meta"):
        model: nn.Module = nn.Sequential(
            nn.Linear(9, FEATURES), Half(FEATURES), nn.BatchNorm1d(FEATURES), Half(FEATURES)
        )
    torch.manual_seed(5)
    with sharded(model, stage, **on_disk(tmp_path)):
        optimizer = par.ZeroOptimizer(torch.optim.AdamW, model, lr=0.01)
        before = par.whole_state_dict(model)
        assert not any(one.is_meta for one in (*model.parameters(), *model.buffers()))
        assert float(before["2.running_var"].sum()) == FEATURES
        assert 0 < float(before["3.up.weight"].abs().max()) < 1
        model(torch.ones(4, 9) + torch.arange(4)[:, None]).square().sum().backward()
        optimizer.step()
        after = par.whole_state_dict(model)
        assert not torch.equal(before["3.up.weight"], after["3.up.weight"])


def test_buffers_on_meta_of_a_norm_without_parameters() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False))
    with sharded(model, 3, unit=nn.Linear):
        norm = model[1]
        assert torch.equal(norm.running_mean, torch.zeros(4))
        assert torch.equal(norm.running_var, torch.ones(4))
        assert norm.num_batches_tracked == 0


def test_values_on_meta_that_differ(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(9, 9), nn.Linear(9, 9))
    torch.manual_seed(hvd.rank())
    with pytest.raises(hvd.MismatchError, match=r"checksum of parameter .*manual_seed"):
        par.shard(model, world(), 3, unit=nn.Linear, **on_disk(tmp_path))


def test_a_module_on_meta_without_reset_parameters() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(9))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(9, 9), Scale())
    with pytest.raises(ValueError, match=r"1, a .*Scale, is on the device .*initialize="):
        par.shard(model, world(), 3, unit=nn.Linear)
    assert model[0].weight.is_meta  # unchanged

    def ones(module: nn.Module) -> None:
        for one in module.parameters(recurse=False):
            one.fill_(1)

    par.shard(model, world(), 3, unit=nn.Linear, initialize=ones)
    assert all(bool((one == 1).all()) for one in par.whole_state_dict(model).values())
    par.unshard(model)


def test_cpu_is_where_it_is(tmp_path: Path) -> None:
    model = make()
    with sharded(model, 3, offload="cpu"):
        assert sharded_of(model).store is None
    with pytest.raises(ValueError, match='there are None, "cpu" and "disk"'):
        par.shard(make(), world(), 3, unit=Half, offload="tape")


def test_a_folder_that_is_missing_on_one_rank(tmp_path: Path) -> None:
    folder = tmp_path if hvd.rank() else tmp_path / "none"
    with pytest.raises(par.OffloadError, match=r"rank 0: can't offload to .*none: No such file"):
        par.shard(make(), world(), 3, unit=Half, offload="disk", offload_folder=folder)


@pytest.mark.parametrize("at", ["shard", "optimizer"])
def test_a_disk_that_is_full_on_one_rank(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ranks get the error, which names the folder."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    last = hvd.size() - 1
    model = make()

    def begin() -> None:
        par.shard(model, world(), 3, unit=Half, **on_disk(tmp_path))

    if at == "optimizer":
        begin()
    if hvd.rank() == last:
        monkeypatch.setattr(os, "posix_fallocate", full)
    work = begin if at == "shard" else lambda: par.ZeroOptimizer(torch.optim.AdamW, model)
    with pytest.raises(par.OffloadError, match=rf"rank {last}: /.* is full: .* are free"):
        work()
    if at == "optimizer":
        par.unshard(model)


@pytest.mark.parametrize("what", ["preadv", "pwritev"])
def test_a_disk_that_breaks_in_a_step(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    model = make()
    with sharded(model, 2, **on_disk(tmp_path)):
        optimizer = par.ZeroOptimizer(torch.optim.AdamW, model)
        step(model, optimizer, 0)
        optimizer.zero_grad()
        model(batch(1)).backward()
        with monkeypatch.context() as patch:
            if hvd.rank() == 0:
                patch.setattr(os, what, broken)
            with pytest.raises(par.OffloadError, match=r"rank 0: can't .*: Input/output error"):
                optimizer.step()
