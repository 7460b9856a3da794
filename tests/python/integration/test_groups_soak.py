"""The soak of torch.distributed's groups next to Gloo's: one seed in CI. The long one:

HOROSCALE_TEST_GROUPS_SEEDS=20 HOROSCALE_TEST_GROUPS_OPERATIONS=1000 \\
    pytest integration/test_groups_soak.py
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from support.rank_processes import RankProcesses

PROGRAM = Path(__file__).parent / "groups_soak.py"
RANKS = 4
SEEDS = int(os.environ.get("HOROSCALE_TEST_GROUPS_SEEDS", "1"))
OPERATIONS = int(os.environ.get("HOROSCALE_TEST_GROUPS_OPERATIONS", "200"))
SECONDS = 300

pytest.importorskip("torch")


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_operations_of_groups_equal_gloos(seed: int, tmp_path: Path) -> None:
    arguments = ["--seed", str(seed), "--operations", str(OPERATIONS)]
    variables = {"OMP_NUM_THREADS": "1"}
    with RankProcesses(RANKS, PROGRAM, *arguments, folder=tmp_path, variables=variables) as job:
        lines = {job.read_line(rank, SECONDS) for rank in range(RANKS)}
        for rank in range(RANKS):
            job.wait(rank, SECONDS)
    (line,) = lines
    done = re.fullmatch(r"(\d+) operations", line)
    assert done
    assert int(done[1]) >= OPERATIONS
