"""Checkpoints between meshes, and ranks that are killed while they write one.

HOROSCALE_TEST_CHECKPOINT_SOURCES=8 loads all pairs of meshes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.examples import launch
from support.rank_processes import RankProcesses

torch = pytest.importorskip("torch")

import horoscale.torch.parallel as par  # noqa: E402

HERE = Path(__file__).parent
SECONDS = 200
SOURCES = int(os.environ.get("HOROSCALE_TEST_CHECKPOINT_SOURCES", "2"))


@pytest.mark.timeout(8 * SECONDS)
def test_training_goes_on_from_any_mesh_on_any_mesh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = HERE / "checkpoint_meshes.py"
    monkeypatch.setenv("PYTHONPATH", str(HERE.parent), prepend=":")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for what in ("save", "load"):
        for ranks in (1, 2, 3, 4):
            launch(ranks, sys.executable, program, what, tmp_path, str(SOURCES), folder=tmp_path)


@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize(
    ("point", "victim", "mode", "newest"),
    [
        ("before its file", 1, "", 1),
        ("after its file", 1, "", 1),
        ("before metadata", 0, "", 1),
        ("after metadata", 0, "asynchronous", 1),
        ("before rename", 0, "", 1),
        ("after rename", 0, "", 2),
    ],
)
def test_a_kill_leaves_the_last_checkpoint(
    point: str, victim: int, mode: str, newest: int, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    arguments = (point, str(victim), str(folder), *([mode] if mode else []))
    with RankProcesses(2, HERE / "checkpoint_kill.py", *arguments, folder=tmp_path) as job:
        told = json.loads(job.read_line(1 - victim, SECONDS))
        assert told == {"error": "RankFailedError", "step": 2}
        job.wait(1 - victim, SECONDS)
        assert job.processes[victim].wait(SECONDS) == -signal.SIGKILL
    model = torch.nn.Linear(4, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    assert par.load(folder, model, optimizer) == {"step": newest}
    assert (model.weight == newest).all()
    assert (model.bias == newest).all()
    assert optimizer.param_groups[0]["lr"] == 0.1
    # Leftovers don't interfere, and are removed.
    path = par.save(folder, model, optimizer).wait()
    assert path.name == f"checkpoint-{newest + 1:012}"
    assert not [one for one in folder.iterdir() if one.name.startswith(".")]


def test_the_module_needs_no_torch_distributed_until_it_is_used() -> None:
    code = (
        "import sys, horoscale.torch.parallel; "
        "assert 'torch.distributed.checkpoint' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=SECONDS)
