"""Invalid flags of elastic jobs: one clear line, an exit status, and nothing left behind."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from launcher_process import Launcher, run_launcher
from support.shared_files import shared_files

from horoscale.elastic.checkpoints import read_checkpoint

USAGE = 2
FAILED = 1


def refused(folder: Path, *flags: object) -> tuple[int, list[str]]:
    """The status of a job and its launcher's output by line, once all of its processes are gone."""
    shared_before = shared_files()
    with Launcher(*flags, "true", env={"XDG_RUNTIME_DIR": str(folder)}) as job:
        status, output, errors = job.finish()
        assert job.processes() == []
    assert output == b""
    assert list(folder.rglob("*.sock")) == []
    assert shared_files() <= shared_before
    lines = errors.decode().splitlines()
    assert all(line.startswith("horoscalerun: ") for line in lines), lines
    return status, lines


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("-np 2 --min-np 5", "--min-np 5 is more than -np 2"),
        ("--min-np 3 --max-np 1", "--min-np 3 is more than --max-np 1"),
        ("-np 3 --min-np 1 --max-np 2", "-np 3 is more than --max-np 2"),
        ("--max-np 2", "how many ranks? Give -np N or --min-np N"),
        ("--min-np 0", "--min-np: expected a number from 1 to 1048576, not '0'"),
        ("--min-np many", "--min-np: expected a number from 1 to 1048576, not 'many'"),
        ("-np 4 --min-np 2 -H localhost:3", "starts with 4 ranks, but the hosts have only 3 slots"),
        (
            "-np 2 --min-np 1 --slots-per-host 1",
            "starts with 2 ranks, but the hosts have only 1 slots",
        ),
        ("-np 2 --min-np 1 --mpi", "--mpi and --min-np cannot be combined"),
        ("-np 2 --min-np 1 --torch-env", "--torch-env and --min-np cannot be combined"),
        ("-np 1 --elastic-timeout -1", "--elastic-timeout: expected a number of seconds, not '-1'"),
        ("-np 1 --elastic-timeout nan", "--elastic-timeout: expected a number of seconds"),
        ("-np 1 --evict-seconds soon", "--evict-seconds: expected a number of seconds, not 'soon'"),
        ("-np 1 --reset-limit -1", "--reset-limit: expected a number from 0"),
        ("-np 1 --blacklist-cooldown-range 5 1", "--blacklist-cooldown-range: expected 0 < LOW"),
        (
            "-np 1 --host-discovery-script x -H localhost",
            "give --host-discovery-script, or -H or --hostfile, not both",
        ),
        ("-np 1 --checkpoint-dir d --checkpoint-every soon", "--checkpoint-every: 'soon' is"),
        ("-np 1 --checkpoint-dir d --checkpoint-every 0s", "--checkpoint-every: '0s' is neither"),
        ("-np 1 --checkpoint-every 5s", "--checkpoint-every needs --checkpoint-dir DIR"),
        ("-np 1 --resume nowhere", "--resume: there is no checkpoint in "),
        ("-np 1 --checkpoint-dir d --resume nowhere", "--resume: there is no checkpoint in "),
        (f"-np 1 --resume {Path(__file__).parent}", "--resume: there is no checkpoint in "),
        (f"-np 1 --resume {__file__}", "--resume: there is no checkpoint in "),
        ("--status", "no elastic job of this user is running on this machine"),
        ("--drain localhost", "no elastic job of this user is running on this machine"),
        ("--status --job 1", "no elastic job of this user is running on this machine"),
        ("--status --job me", "--job: expected a number from 1"),
    ],
)
def test_flags_that_cannot_be(flags: str, said: str, tmp_path: Path) -> None:
    status, lines = refused(tmp_path, *flags.split())
    assert status == USAGE
    assert len(lines) == 1
    assert lines[0].startswith("horoscalerun: error: ")
    assert said in lines[0]


def test_asking_where_no_job_can_be(tmp_path: Path) -> None:
    job = run_launcher("--status", env={"XDG_RUNTIME_DIR": str(tmp_path / "none")})
    assert job.returncode == USAGE
    assert job.stderr.count(b"\n") == 1
    assert b"error: cannot create the folder of the jobs' sockets" in job.stderr


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (None, r"ended with status 127: .*not found"),
        ("echo localhost:1; echo because >&2; exit 3", r"ended with status 3: because"),
        ("echo Here are your hosts", r"line 1 is not host:slots: 'Here are your hosts'"),
        ("echo localhost:1; echo -oProxyCommand=x:1", r"line 2 is not host:slots"),
        ("echo localhost", r"line 1 gives no slots, and --slots-per-host was not given"),
    ],
    ids=["missing", "fails", "nonsense", "option", "no slots"],
)
def test_a_script_that_never_works(script: str | None, said: str, tmp_path: Path) -> None:
    status, lines = refused(tmp_path, "-np", 1, *discovery(tmp_path, script))
    assert status == USAGE
    assert len(lines) == 1
    assert re.search(rf"the job has failed: --host-discovery-script \S+/hosts: {said}", lines[0])


@pytest.mark.parametrize(
    ("script", "waits"), [("", True), ("sleep 600", False)], ids=["no host", "slow"]
)
def test_a_script_that_tells_no_host(script: str, waits: bool, tmp_path: Path) -> None:
    flags = (*discovery(tmp_path, script), "--elastic-timeout", 0.3)
    status, lines = refused(tmp_path, "-np", 2, *flags)
    assert status == FAILED
    assert lines[-1] == (
        "horoscalerun: the job has failed: for 0.3 s (--elastic-timeout) there were no more than "
        "0 of at least 2 ranks"
    )
    waiting = ["horoscalerun: waits for 2 more of at least 2 ranks"]
    assert lines[:-1] == (waiting if waits else [])


def discovery(folder: Path, script: str | None) -> tuple[object, ...]:
    path = folder / "hosts"
    if script is not None:
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o700)
    return "--host-discovery-script", path


PROGRAM = """
import horoscale.numpy as hvd
from horoscale import elastic

hvd.init()
state = elastic.ObjectState(step=0)

@elastic.run
def train(state):
    print("begins at", state.step)
    state.step += 1
    state.commit()

train(state)
"""


@pytest.mark.parametrize("own", [True, False], ids=["own folder", "another folder"])
def test_a_job_that_wrote_no_checkpoint_begins_anew(own: bool, tmp_path: Path) -> None:
    """Like a job that a batch system requeues, whose command always has --resume."""
    place = tmp_path / "checkpoints"
    if not own:
        place.mkdir()
        (place / ".commit-000000000001.dead").mkdir()  # left by a killed process
    flags = ("-np", 2, "--resume", place, *(("--checkpoint-dir", place) if own else ()))
    for step in (0, 1 if own else 0):
        job = run_launcher(*flags, sys.executable, "-c", PROGRAM)
        assert job.returncode == 0, job.stderr
        words = f"begins at {step}".encode()
        assert sorted(job.stdout.splitlines()) == [b"[%d]<stdout>:" % r + words for r in range(2)]
        anew = b"there is no checkpoint in %s yet" % str(place).encode()
        assert job.stderr.count(anew) == (step == 0), job.stderr
    if own:
        assert read_checkpoint(place)[1].value("step") == 2


def test_a_damaged_checkpoint_is_not_taken_for_none(tmp_path: Path) -> None:
    (tmp_path / "commit-000000000003").mkdir()
    flags = ("-np", 1, "--checkpoint-dir", tmp_path, "--resume", tmp_path)
    job = run_launcher(*flags, sys.executable, "-c", PROGRAM)
    assert job.returncode == 1
    assert b"ValueError: there is no checkpoint to resume from in" in job.stderr
    assert b"commit-000000000003: " in job.stderr
    assert b"begins at" not in job.stdout
