"""Process sets in real jobs: a member dies, and another process takes its place."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from launcher_process import run_launcher

SCRIPT = Path(__file__).with_name("elastic_sets.py")


def test_each_set_becomes_what_its_rule_says(tmp_path: Path) -> None:
    flags = ("-np", 4, "--min-np", 3)
    env = {"HOROSCALE_DYNAMIC_PROCESS_SETS": "1"}
    job = run_launcher(*flags, sys.executable, SCRIPT, tmp_path, 3, env=env)
    assert job.returncode == 0, job.stderr
    lines = [line for log in tmp_path.glob("log.*") for line in log.read_text().splitlines()]
    sets: dict[int, dict[int, Any]] = {}  # by view and rank
    for one in map(json.loads, lines):
        sets.setdefault(one["view"], {})[one["rank"]] = one["sets"]
    whole = {"even": [0, 2], "drop": [0, 3], "wait": [1, 3], "shrink": [2, 3], "others": [0, 1]}
    whole["added"] = [0, 2, 3]
    without = {"even": [0, 2], "shrink": [2], "others": [0, 1], "added": [0, 2]}
    again = {name: ranks for name, ranks in whole.items() if name != "drop"}
    assert sets == {
        1: dict.fromkeys(range(4), whole),
        2: dict.fromkeys(range(3), without),
        3: dict.fromkeys(range(4), again),
    }
