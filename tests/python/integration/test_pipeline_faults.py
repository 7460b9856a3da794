"""A rank of a pipeline dies in the middle of a step: the others' errors name it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from support.rank_processes import RankProcesses

pytest.importorskip("torch")

PROGRAM = Path(__file__).with_name("pipeline_rank.py")
RANKS = 3
SECONDS = 150  # mostly for imports, while other tests run


@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize(
    ("schedule", "victim", "phase"),
    [("1f1b", 1, "forward"), ("zb-h1", 0, "backward")],
)
def test_survivors_name_the_rank(schedule: str, victim: int, phase: str, tmp_path: Path) -> None:
    arguments = (schedule, str(victim), phase)
    variables = {"OMP_NUM_THREADS": "1"}
    with RankProcesses(RANKS, PROGRAM, *arguments, folder=tmp_path, variables=variables) as job:
        for rank in set(range(RANKS)) - {victim}:
            told = json.loads(job.read_line(rank, SECONDS))
            assert told["first"] == ["RankFailedError", [victim]]
            kind, text = told["later"]
            assert kind == "PipelineError"
            assert f"failed before: rank {victim}" in text
            job.wait(rank, SECONDS)
        assert job.processes[victim].wait(SECONDS) == -signal.SIGKILL
        assert job.survivors() == []
