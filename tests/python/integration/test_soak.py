"""The soak, in a size for CI; HOROSCALE_TEST_SOAK_SEEDS=20 makes it long."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.rank_processes import RankProcesses

PROGRAM = Path(__file__).parent / "soak.py"
RANKS = 4
SEEDS = int(os.environ.get("HOROSCALE_TEST_SOAK_SEEDS", "2"))
ITERATIONS = 500
SECONDS = 300


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_collectives(seed: int, tmp_path: Path) -> None:
    arguments = ("--seed", str(seed), "--iterations", str(ITERATIONS))
    with RankProcesses(RANKS, PROGRAM, *arguments, folder=tmp_path) as job:
        lines = {job.read_line(rank, SECONDS) for rank in range(RANKS)}
        for rank in range(RANKS):
            job.wait(rank, SECONDS)
    assert len(lines) == 1
    assert lines.pop().startswith(f"{ITERATIONS} iterations, ")
