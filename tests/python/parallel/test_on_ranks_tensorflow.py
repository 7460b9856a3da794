"""Starts the tests of the TensorFlow binding on several numbers of ranks, if it is installed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

FILES = sorted(Path(__file__).parent.glob("test_tensorflow_*.py"))
SECONDS = 400


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="needs tensorflow")
@pytest.mark.timeout(SECONDS + 30)
@pytest.mark.parametrize(("ranks", "threads"), [(1, 0), (2, 0), (3, 1)])
def test_on_ranks(ranks: int, threads: int) -> None:
    """If a collective blocked a graph's only thread, this would hang.

    Training tests, which are slow to trace, run on even numbers of ranks only.
    """
    files = [file for file in FILES if ranks % 2 == 0 or "training" not in file.name]
    pytest_command = [
        *(sys.executable, "-m", "pytest", "-q", "--timeout=60", "-W", "default"),
        *("--maxfail=3", "--tb=short", *map(str, files)),
    ]
    result = subprocess.run(
        [sys.executable, "-m", "horoscale.runner", "-np", str(ranks), *pytest_command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        env=os.environ
        | {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "TEST_THREADS": str(threads)},
        check=False,
    )
    assert result.returncode == 0, result.stdout[-20_000:]
