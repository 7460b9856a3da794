"""Ranks die that hold what no other rank has: it comes back from their buddies, bit by bit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from launcher_process import run_launcher

SCRIPT = Path(__file__).with_name("elastic_shards.py")


def run(
    folder: Path, steps: int, kills: list[tuple[int, int]], *flags: object, full: int
) -> subprocess.CompletedProcess[bytes]:
    arguments = [number for kill in kills for number in kill]
    env = {"FULL_SIZE": str(full)}
    return run_launcher(*flags, sys.executable, SCRIPT, folder, steps, *arguments, env=env)


def owners(folder: Path) -> list[list[int]]:
    ends = [json.loads(path.read_text()) for path in sorted(folder.glob("end-*"))]
    assert len({step for step, _ in ends}) == 1
    return [of_rank for _, of_rank in ends]


def test_replacements_get_the_shards(tmp_path: Path) -> None:
    job = run(tmp_path, 7, [(2, 0), (5, 2)], "-np", 3, "--min-np", 2, full=3)
    assert job.returncode == 0, job.stderr
    assert sorted(owner for one in owners(tmp_path) for owner in one) == [0, 1, 2]
    assert len(owners(tmp_path)) == 3


def test_without_a_replacement_the_buddy_has_them(tmp_path: Path) -> None:
    flags = ("-np", 4, "--min-np", 1, "--max-np", 4, "-H", "localhost:2,127.0.0.1:2")
    job = run(tmp_path, 6, [(4, 3)], *flags, "--reset-limit", 1, full=0)
    assert job.returncode == 0, job.stderr
    assert sorted(owner for one in owners(tmp_path) for owner in one) == [0, 1, 2, 3]


def test_a_rank_and_its_buddy_die(tmp_path: Path) -> None:
    job = run(tmp_path, 6, [(3, 1), (3, 2)], "-np", 3, "--min-np", 1, full=0)
    assert job.returncode != 0
    assert b"the shards of former ranks [1] are lost" in job.stderr, job.stderr
