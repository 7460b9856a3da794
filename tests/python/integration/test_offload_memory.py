"""A model whose training state is four times the memory that its process may have."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.memory_limit import memory_limit

pytest.importorskip("torch")

EXAMPLE = Path(__file__).parents[3] / "examples" / "offload_training.py"
MIB = 1 << 20
LIMIT = 352 * MIB
# 16 bytes of state for each of some 4 x 512 x 512 parameters of a layer: 1.4 GiB in all.
SIZES = ["--width", "512", "--layers", "92", "--batch", "8", "--steps", "2"]


def run(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    with memory_limit(LIMIT) as limited:
        return subprocess.run(
            [*limited, sys.executable, EXAMPLE, *SIZES, "--folder", folder, *more],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )


def test_trains_in_a_quarter_of_its_state(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    state = re.search(r"state ([\d.]+) GiB", done.stdout)
    assert state is not None
    assert float(state[1]) * 1024 * MIB >= 4 * LIMIT
    assert not list(tmp_path.iterdir())


def test_does_not_without_offload(tmp_path: Path) -> None:
    """The limit is one: the same training in memory is killed."""
    assert run(tmp_path, "--in-memory").returncode == -9
