"""Pipelines between hosts with separate networks, and ranks that are killed during them."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest
from support import namespaces
from support.namespaces import NetworkHosts
from support.rank_processes import RankProcesses
from test_hosts import run_on

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(namespaces.why_not() is not None, reason=str(namespaces.why_not()))

HERE = Path(__file__).parent
SECONDS = 150  # mostly for imports, while other tests run
REPORT_SECONDS = 10.0  # until a death is known between hosts, also on a busy machine
RANKS = 3
HOST_OF = (0, 0, 1)  # one hand-over within a host, and one between two


@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "interleaved"])
def test_same_bits_as_one_process(schedule: str) -> None:
    with NetworkHosts(2) as hosts:
        output = run_on(hosts, "2,1", sys.executable, HERE / "pipeline_hosts.py", schedule)
    for rank in range(RANKS):
        assert f"rank {rank}: the same bits: True" in output


@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize(
    ("schedule", "victim", "phase"),
    [("1f1b", 1, "forward"), ("1f1b", 2, "backward"), ("zb-h1", 0, "backward")],
)
def test_survivors_name_the_rank(schedule: str, victim: int, phase: str, tmp_path: Path) -> None:
    """On both hosts, whether or not they wait for data of the rank that died."""
    program, arguments = HERE / "pipeline_rank.py", (schedule, str(victim), phase)
    with (
        NetworkHosts(2) as hosts,
        RankProcesses(
            RANKS, program, *arguments, folder=tmp_path, hosts=hosts, host_of=HOST_OF
        ) as job,
    ):
        died_at = float(job.read_line(victim, SECONDS))
        for rank in set(range(RANKS)) - {victim}:
            told = json.loads(job.read_line(rank, SECONDS))
            assert told["first"] == ["RankFailedError", [victim]]
            assert told["failed_at"] - died_at < REPORT_SECONDS
            kind, text = told["later"]
            assert kind == "PipelineError"
            assert f"failed before: rank {victim}" in text
            job.wait(rank, SECONDS)
        assert job.processes[victim].wait(SECONDS) == -signal.SIGKILL
