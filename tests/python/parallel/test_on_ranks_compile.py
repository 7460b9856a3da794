"""Starts the tests of torch.compile, which are slow, on only two numbers of ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).with_name("test_torch_compile.py")
ON_3 = "all_in_one_graph or process_sets or step_by_inductor"
SECONDS = 240


@pytest.mark.timeout(SECONDS + 30)
@pytest.mark.parametrize(
    ("ranks", "which"),
    [(2, f"not ({ON_3})"), (3, ON_3)],
    ids=["np2", "np3"],
)
def test_on_ranks(ranks: int, which: str, tmp_path: Path) -> None:
    pytest_command = [
        *(sys.executable, "-m", "pytest", "-q", "--timeout=120", "--tb=short", "--maxfail=3"),
        *("-k", which, str(TESTS)),
    ]
    result = subprocess.run(
        [sys.executable, "-m", "horoscale.runner", "-np", str(ranks), *pytest_command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        env=os.environ | {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
        check=False,
    )
    assert result.returncode == 0, result.stdout[-20_000:]
