"""One rank of a job that saves checkpoints on all meshes of its size, or loads those of others.

    python checkpoint_meshes.py save|load FOLDER SOURCES

A checkpoint is saved after 3 steps, in FOLDER/MESH. Each mesh loads the checkpoints of SOURCES
meshes, trains 3 more steps, and must have the losses, parameters and optimizer state of one process
that trained 6 steps.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from support.parallel_checkpoints import OneProcess, OnMesh

import horoscale.torch as hvd
import horoscale.torch.parallel as par

EXACT = {"rtol": 1e-12, "atol": 1e-12}
MESHES = {
    1: {"one": {}},
    2: {"tp2": {"tp": 2}, "pp2": {"pp": 2}, "dp2": {"dp": 2}},
    3: {"tp3": {"tp": 3}},
    4: {"tp4": {"tp": 4}, "tp2pp2": {"tp": 2, "pp": 2}, "tp2dp2": {"tp": 2, "dp": 2}},
}
NAMES = [name for meshes in MESHES.values() for name in meshes]
OTHERS = (1, 4, 0, 2, 3, 5, 6, 7)  # offsets in the list from a mesh on; other kinds come first
FIRST, LAST = range(3), range(3, 6)


def sources_of(name: str, number: int) -> list[str]:
    """The meshes whose checkpoints a mesh loads; each is loaded equally often."""
    assert sorted(OTHERS) == list(range(len(NAMES)))
    at = NAMES.index(name)
    return [NAMES[(at + other) % len(NAMES)] for other in OTHERS[:number]]


def save(folder: Path, mesh: par.Mesh) -> None:
    training = OnMesh(mesh, lr=0.01)
    training.load_whole(OneProcess().model.state_dict())
    for number in FIRST:
        training.step(number)
    par.save(folder, training.model, training.optimizer, mesh, extra={"next": LAST.start})


def load(folder: Path, mesh: par.Mesh, end: OneProcess, losses: list[float]) -> None:
    training = OnMesh(mesh)
    extra = par.load(folder, training.model, training.optimizer, mesh)
    assert extra == {"next": LAST.start}
    for number, expected in zip(LAST, losses, strict=True):
        torch.testing.assert_close(training.step(number), expected, **EXACT)
    whole = end.model.state_dict()
    for name, value in training.whole().items():
        torch.testing.assert_close(
            value, whole[name], **EXACT, msg=lambda text, name=name: f"{name}: {text}"
        )
    # One process reads the optimizer's state from another checkpoint.
    here = folder.with_name(f"{folder.name}-{'-'.join(map(str, mesh.sizes.values()))}")
    par.save(here, training.model, training.optimizer, mesh)
    alone = OneProcess(seed=2, lr=0.3)
    par.load(here, alone.model, alone.optimizer, mesh)
    pairs = zip(alone.optimizer.param_groups, end.optimizer.param_groups, strict=True)
    for ours, theirs in pairs:
        assert {**ours, "params": 0} == {**theirs, "params": 0}
        for one, other in zip(ours["params"], theirs["params"], strict=True):
            state, expected = alone.optimizer.state[one], end.optimizer.state[other]
            assert state.keys() == expected.keys()
            for key, value in expected.items():
                torch.testing.assert_close(state[key], value, **EXACT)


def main() -> None:
    what, folder, number = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    torch.set_default_dtype(torch.float64)
    hvd.init(process_sets="dynamic")
    end = OneProcess()
    losses = [end.step(number) for number in (*FIRST, *LAST)][LAST.start :]
    for name, extents in MESHES[hvd.size()].items():
        mesh = par.init(**extents)
        if what == "save":
            save(folder / name, mesh)
        else:
            for other in sources_of(name, number):
                try:
                    load(folder / other, mesh, end, losses)
                except Exception as error:
                    raise RuntimeError(f"{other} into {name} on rank {hvd.rank()}") from error
        mesh.close()
    hvd.shutdown()


if __name__ == "__main__":
    main()
