"""The soak: 1,000 operations of each seed, two in CI. The long one takes minutes:

HOROSCALE_TEST_SOAK_SEEDS=20 pytest integration/test_soak.py
"""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

import pytest
from support.rank_processes import RankProcesses

PROGRAM = Path(__file__).parent / "soak.py"
RANKS = 4
SEEDS = int(os.environ.get("HOROSCALE_TEST_SOAK_SEEDS", "2"))
OPERATIONS = int(os.environ.get("HOROSCALE_TEST_SOAK_OPERATIONS", "1000"))
SECONDS = 300
HAS_TORCH = importlib.util.find_spec("torch") is not None


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_collectives_and_messages(seed: int, tmp_path: Path) -> None:
    """Odd seeds also send PyTorch tensors."""
    with_torch = HAS_TORCH and seed % 2 == 1
    arguments = ["--seed", str(seed), "--operations", str(OPERATIONS)]
    arguments += ["--torch"] * with_torch
    with RankProcesses(RANKS, PROGRAM, *arguments, folder=tmp_path) as job:
        lines = {job.read_line(rank, SECONDS) for rank in range(RANKS)}
        for rank in range(RANKS):
            job.wait(rank, SECONDS)
    (line,) = lines
    done = re.fullmatch(r"\d+ iterations, (\d+) operations", line)
    assert done
    assert int(done[1]) >= OPERATIONS
