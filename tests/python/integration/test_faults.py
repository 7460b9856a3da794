"""A rank dies at a random moment: the others fail at once and for good, and nothing remains.

HOROSCALE_TEST_KILLS=50 runs the long version.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
from support.rank_processes import RankProcesses
from support.shared_files import shared_files

PROGRAM = Path(__file__).parent / "kill_rank.py"
RANKS = 4
KILLS = int(os.environ.get("HOROSCALE_TEST_KILLS", "8"))
START_SECONDS = 60
REPORT_SECONDS = 10.0  # for a loaded machine; NETWORK_TIMEOUT_SECONDS is 30
END_SECONDS = 20
LATER_OPERATIONS = 6  # started by kill_rank.py after the failure


def kill(job: RankProcesses, victim: int, delay: float) -> float:
    """Kill the victim `delay` seconds after all ranks are ready; return the time."""
    for rank in range(RANKS):
        assert job.read_line(rank, START_SECONDS) == "ready"
    time.sleep(delay)  # the random moment, not a synchronization
    killed_at = time.monotonic()
    job.processes[victim].kill()
    return killed_at


def check_survivor(job: RankProcesses, rank: int, victim: int, killed_at: float) -> None:
    report = json.loads(job.read_line(rank, END_SECONDS))
    took = report["raised_at"] - killed_at
    assert took < REPORT_SECONDS, f"rank {rank} raised after {took:.2f} s"
    assert report["pending"], f"rank {rank}: nothing pending failed"
    assert all(named == [victim] for named in report["pending"]), report
    assert report["later"] == [[victim]] * LATER_OPERATIONS, report


def check_nothing_remains(job: RankProcesses, folder: Path, shared_before: set[str]) -> None:
    assert job.survivors() == []
    assert list(folder.iterdir()) == []
    assert shared_files() <= shared_before


@pytest.mark.parametrize("seed", range(KILLS))
def test_killed_rank_is_named_by_all_others(seed: int, tmp_path: Path) -> None:
    mode = ("busy", "large", "busy", "absent")[seed % 4]
    moment = random.Random(seed)
    victim, delay = moment.randrange(RANKS), moment.uniform(0, 0.5)
    shared_before = shared_files()
    with RankProcesses(RANKS, PROGRAM, str(seed), str(victim), mode, folder=tmp_path) as job:
        killed_at = kill(job, victim, delay)
        for rank in set(range(RANKS)) - {victim}:
            check_survivor(job, rank, victim, killed_at)
            job.wait(rank, END_SECONDS)
        job.processes[victim].wait(END_SECONDS)
        check_nothing_remains(job, tmp_path, shared_before)


def test_death_is_seen_though_a_child_holds_the_descriptors(tmp_path: Path) -> None:
    victim = 1
    shared_before = shared_files()
    with RankProcesses(RANKS, PROGRAM, "0", str(victim), "forked", folder=tmp_path) as job:
        child = int(job.read_line(victim, START_SECONDS))
        try:
            killed_at = kill(job, victim, 0.1)
            for rank in set(range(RANKS)) - {victim}:
                check_survivor(job, rank, victim, killed_at)
                job.wait(rank, END_SECONDS)
        finally:
            os.kill(child, signal.SIGKILL)
        job.processes[victim].wait(END_SECONDS)
        while child in job.survivors():  # an orphan's end can only be polled
            assert time.monotonic() < killed_at + END_SECONDS
            time.sleep(0.01)
        check_nothing_remains(job, tmp_path, shared_before)
