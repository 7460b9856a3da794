"""Runs the examples as users do, and reads their output."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
SECONDS = 200  # against hangs: each rank's imports alone take seconds of a core


def run(*command: str | Path, folder: Path) -> str:
    """The standard output of a command, which must succeed."""
    result = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    return result.stdout


def launch(num_ranks: int, *command: str | Path, folder: Path, flags: tuple[str, ...] = ()) -> str:
    """The standard output of the ranks of a job, which must succeed."""
    launcher = (sys.executable, "-m", "horoscale.runner", *flags, "-np", str(num_ranks))
    return run(*launcher, *command, folder=folder)


def accuracy_of(output: str) -> float:
    """The last accuracy that an example has printed."""
    found = re.findall(r"accuracy\D*([01]\.\d+)", output, re.IGNORECASE)
    assert found, output
    return float(found[-1])
