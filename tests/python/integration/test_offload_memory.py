"""A model whose training state is four times its process's memory limit."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.memory_limit import memory_limit

pytest.importorskip("torch")

EXAMPLE = Path(__file__).parents[3] / "examples" / "offload_training.py"
SECONDS = 240  # per run
MIB = 1 << 20
LIMIT = 448 * MIB
# 16 bytes of state for each of some 4 x 512 x 512 parameters of a layer: 1.8 GiB in all.
SIZES = ["--width", "512", "--layers", "118", "--batch", "8", "--steps", "1"]

pytestmark = pytest.mark.timeout(2 * SECONDS + 60)


def run(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    with memory_limit(LIMIT) as limited:
        return subprocess.run(
            [*limited, sys.executable, EXAMPLE, *SIZES, "--folder", folder, *more],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )


def test_trains_in_a_quarter_of_its_state(tmp_path: Path) -> None:
    """Also writes a checkpoint, and resumes from it."""
    folder, checkpoints = tmp_path / "disk", tmp_path / "checkpoints"
    folder.mkdir()
    try:
        for last in (1, 2):
            done = run(folder, "--checkpoints", str(checkpoints))
            assert done.returncode == 0, done.stderr
            assert f"step  {last}: loss" in done.stdout
            state = re.search(r"state ([\d.]+) GiB", done.stdout)
            assert state is not None
            assert float(state[1]) * 1024 * MIB >= 4 * LIMIT
            assert not list(folder.iterdir())
    finally:
        shutil.rmtree(checkpoints, ignore_errors=True)  # more than a gibibyte


def test_does_not_without_offload(tmp_path: Path) -> None:
    """The limit is effective: the same training in memory is killed."""
    assert run(tmp_path, "--in-memory").returncode == -9
