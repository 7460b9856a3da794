"""Ordered shards, read by ranks that die: the committed model contains each item once."""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path

import pytest
from launcher_process import run_launcher

SCRIPT = Path(__file__).with_name("elastic_streams.py")
LENGTHS = [7, 0, 12, 3, 9]


@pytest.mark.parametrize(("step", "rank"), [(4, 0), (7, 2)])
def test_each_item_is_seen_once_in_each_epoch(step: int, rank: int, tmp_path: Path) -> None:
    job = run_launcher("-np", 3, "--min-np", 2, sys.executable, SCRIPT, tmp_path, step, rank)
    assert job.returncode == 0, job.stderr
    done = [json.loads((tmp_path / f"done.{one}").read_text()) for one in range(3)]
    assert done[0] == done[1] == done[2]
    assert done[0]["sizes"] == [3, 2, 3]
    epochs = range(done[0]["epochs"])
    items = [[s, line] for s, length in enumerate(LENGTHS) for line in range(length)]
    expected = [[epoch, *item] for epoch, item in product(epochs, items)]
    assert sorted(done[0]["seen"]) == sorted(expected)
