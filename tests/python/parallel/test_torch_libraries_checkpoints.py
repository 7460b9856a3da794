"""PyTorch's distributed checkpoints over the backend of torch.distributed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from support.torch_libraries import MARKS, close, default_group, mesh, model, train

import horoscale.torch as hvd

pytestmark = MARKS

WHOLE = torch.arange(40.0).view(10, 4)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that all ranks share."""
    made = tempfile.mkdtemp() if hvd.rank() == 0 else ""
    yield Path(hvd.broadcast_object(made, root_rank=0))
    hvd.barrier()
    if made:
        shutil.rmtree(made)


def saved(how: str, state: dict[str, Any], folder: Path, group: Any = None) -> None:
    """Save a state with all members of a group."""
    import torch.distributed.checkpoint as dcp

    if how == "save":
        dcp.save(state, checkpoint_id=folder, process_group=group)
    else:
        dcp.async_save(state, checkpoint_id=folder, process_group=group).result()


@pytest.mark.parametrize("how", ["save", "async_save"])
@pytest.mark.parametrize("numbers", [(2, 4, 1), (1, 4, 2), (4, 2, 4)])
def test_resharding(how: str, numbers: tuple[int, ...], folder: Path) -> None:
    """One group saves, the next loads and saves again, for as many group sizes as possible."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    with default_group("horoscale"):
        value, place = WHOLE, 0
        for turn, number in enumerate(numbers):
            members = list(range(min(number, hvd.size())))
            group = dist.new_group(members)
            if hvd.rank() in members:
                ranks = DeviceMesh.from_group(group, "cpu")
                before = value if turn == 0 else torch.zeros_like(value)
                state = {"weight": distribute_tensor(before, ranks, [Shard(place)]), "turn": turn}
                if turn > 0:
                    dcp.load(state, checkpoint_id=folder / str(turn - 1), process_group=group)
                    assert state["turn"] == turn - 1
                    state["turn"] = turn
                weight: DTensor = state["weight"]
                assert torch.equal(weight.full_tensor(), WHOLE)
                saved(how, state, folder / str(turn), group)
            dist.barrier()
            place = 1 - place


def test_training_goes_on_from_a_checkpoint(folder: Path) -> None:
    """A sharded model and its optimizer, saved while training continues."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard

    def steps(module: Any, optimizer: Any) -> None:
        for _ in range(2):
            optimizer.zero_grad()
            module(torch.ones(2, 16) + hvd.rank()).square().mean().backward()
            optimizer.step()

    def made() -> tuple[Any, Any]:
        module = fully_shard(model(), mesh=mesh())
        return module, torch.optim.Adam(module.parameters(), lr=0.01)

    with default_group("horoscale"):
        own_group = dist.new_group()  # another thread runs its operations
        module, optimizer = made()
        steps(module, optimizer)
        weights, moments = get_state_dict(module, optimizer)
        state = {"model": weights, "optimizer": moments}
        saving: Any = dcp.async_save(state, checkpoint_id=folder / "one", process_group=own_group)
        steps(module, optimizer)
        saving.result()

        other, its_optimizer = made()
        weights, moments = get_state_dict(other, its_optimizer)
        state = {"model": weights, "optimizer": moments}
        dcp.load(state, checkpoint_id=folder / "one")
        set_state_dict(
            other,
            its_optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        steps(other, its_optimizer)
        ours = [one.full_tensor() for one in module.parameters()]
        theirs = [one.full_tensor() for one in other.parameters()]
    close(ours, theirs, rtol=0, atol=0)


def test_what_one_backend_saved_the_other_loads(folder: Path) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.fsdp import fully_shard

    trained = []
    for number, (saves, loads) in enumerate([("gloo", "horoscale"), ("horoscale", "gloo")]):
        with default_group(saves):
            module: Any = fully_shard(model(), mesh=mesh())
            train(module)
            dcp.save(module.state_dict(), checkpoint_id=folder / str(number))
        with default_group(loads):
            other: Any = fully_shard(model(), mesh=mesh())
            state = other.state_dict()
            dcp.load(state, checkpoint_id=folder / str(number))
            trained.append([one.full_tensor() for one in state.values()])
    close(*trained)
