"""Jobs that end early: their commits are on disk, and another job resumes from them."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest
from launcher_process import PATIENCE_S, Launcher, run_launcher

from horoscale.elastic.checkpoints import read_checkpoint

# No Python signal handler can run at once in the main threads: one waits for the other, which
# blocks forever.
PROGRAM = """
import os, subprocess
import numpy as np, horoscale.numpy as hvd
from horoscale import elastic

hvd.init()
state = elastic.ObjectState(step=0)

@elastic.run
def train(state):
    print("begins at", state.step, flush=True)
    while state.step < 3:
        state.step += 1
        state.commit()
    if os.environ.get("WAIT"):
        state.step += 1  # not committed
        print("waits", flush=True)
        if hvd.rank() == 1:
            os.read(os.pipe()[0], 1)
        hvd.allreduce(np.ones(1))

train(state)
"""


@pytest.mark.parametrize("how", ["the launcher dies", "SIGTERM to the launcher"])
def test_the_last_commit_goes_to_disk(how: str, tmp_path: Path) -> None:
    flags = ("-np", 2, "--min-np", 1, "--checkpoint-dir", tmp_path, "--checkpoint-every", "1h")
    with Launcher(*flags, sys.executable, "-c", PROGRAM, env={"WAIT": "1"}) as job:
        lines = job.read_lines(4)
        assert sorted(line.partition(b":")[2] for line in lines)[2:] == [b"waits", b"waits"]
        status = json.loads(
            run_launcher("--status", "--json", "--job", job.process.pid).stdout.decode()
        )
        # At most one report a second is sent, but it includes at least the first commit.
        assert [one["progress"]["step"] >= 1 for one in status["processes"]] == [True, True]
        job.process.send_signal(signal.SIGKILL if "dies" in how else signal.SIGTERM)
        job.process.wait(PATIENCE_S)
        job.assert_nothing_left()
    assert read_checkpoint(tmp_path)[1].value("step") == 3
    if "dies" in how:
        again = run_launcher("-np", 1, "--resume", tmp_path, sys.executable, "-c", PROGRAM)
        assert (again.returncode, again.stdout) == (0, b"[0]<stdout>:begins at 3\n"), again.stderr


@pytest.mark.parametrize(
    ("end", "status"), [("sys.exit(3)", 3), ("signal.raise_signal(signal.SIGINT)", 130)]
)
def test_the_last_commit_of_a_script_that_ends_itself(
    end: str, status: int, tmp_path: Path
) -> None:
    program = f"""
import signal, sys
import horoscale.numpy as hvd
from horoscale import elastic

hvd.init()
state = elastic.ObjectState(step=0)

@elastic.run
def train(state):
    while True:
        state.step += 1
        state.commit()
        if state.step == 3:
            {end}

train(state)
"""
    flags = ("-np", 1, "--checkpoint-dir", tmp_path, "--checkpoint-every", "1h")
    job = run_launcher(*flags, sys.executable, "-c", program)
    assert job.returncode == status, job.stderr
    assert read_checkpoint(tmp_path)[1].value("step") == 3
