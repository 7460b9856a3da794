"""A complete script for Horovod's elastic mode, unchanged, in a job in which a rank dies."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from launcher_process import run_launcher

SCRIPT = Path(__file__).with_name("horovod_elastic.py")


def test_a_script_for_horovod_outlives_a_rank(tmp_path: Path) -> None:
    script = tmp_path / "hosts.sh"
    script.write_text("#!/bin/sh\necho localhost:1\necho 127.0.0.1:1\n")
    script.chmod(0o700)
    flags = ("--compat", "-np", 2, "--min-np", 1, "--max-np", 2)
    flags += ("--host-discovery-script", script, "--blacklist-cooldown-range", 0.5, 1)
    job = run_launcher(*flags, sys.executable, SCRIPT, tmp_path)
    assert job.returncode == 0, job.stderr
    assert b"127.0.0.1 gets no new process for a while" in job.stderr
    done = [json.loads((tmp_path / f"done.{rank}").read_text()) for rank in range(2)]
    assert done[0]["weights"] == done[1]["weights"]
    for one in done:
        assert one["began"][:2] == [[0, 0, 2], [1, 2, 1]]  # from the last commit, alone
        assert one["began"][-1][2] == 2
        assert one["processed"] == [48, 48, 48]  # each sample once per epoch
        assert one["rate"] == 0.02
    assert [one["resets"] for one in done] == [[1, 2], [2]]
