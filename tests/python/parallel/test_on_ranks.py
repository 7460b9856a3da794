"""Starts these tests on 2 and 3 ranks, and a subset on others. Some have their own starters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
SECONDS = 400
FAILURES_UNTIL_END = 3


@pytest.mark.timeout(SECONDS + 30)
@pytest.mark.parametrize(
    ("ranks", "subset"),
    [(1, "conformance"), (2, None), (3, None), (4, "conformance"), (8, "conformance")],
    ids=lambda value: f"np{value}" if isinstance(value, int) else value or "all",
)
def test_on_ranks(ranks: int, subset: str | None) -> None:
    pytest_command = [
        *(sys.executable, "-m", "pytest", "-q", "--timeout=60", str(FOLDER)),
        *("--ignore-glob=*/test_tensorflow_*.py", "--ignore-glob=*/test_keras*.py"),
        "--ignore-glob=*/test_torch_compile.py",
        *(f"--maxfail={FAILURES_UNTIL_END}", "--tb=short"),
        *(("-m", subset) if subset else ()),
    ]
    result = subprocess.run(
        [sys.executable, "-m", "horoscale.runner", "-np", str(ranks), *pytest_command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert result.returncode == 0, result.stdout[-20_000:]
