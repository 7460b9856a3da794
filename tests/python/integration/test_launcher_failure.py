"""A rank that fails ends the job, and is named."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from launcher_process import Launcher, run_launcher


def shell(script: str) -> list[str]:
    """A program that runs on rank 1 what the script says, and waits for ever elsewhere."""
    return ["sh", "-c", f'if [ "$HOROSCALE_RANK" = 1 ]; then {script}; fi; sleep 1000']


def test_an_exit_status_ends_the_job_and_becomes_the_launchers() -> None:
    with Launcher("-np", 3, *shell("echo about to fail >&2; exit 7")) as job:
        status, _, err = job.finish()
        assert status == 7
        host = os.uname().nodename
        assert err.splitlines()[-2:] == [
            f"horoscalerun: rank 1 on {host} failed first: exit status 7; "
            "its last lines on stderr:".encode(),
            b"    about to fail",
        ]
        job.assert_nothing_left()


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_signal_is_named(signum: signal.Signals) -> None:
    job = run_launcher("-np", 2, *shell(f"kill -{signum.value} $$"))
    assert job.returncode == 128 + signum
    assert (
        f"rank 1 on {os.uname().nodename} failed first: ended by {signum.name}"
        in (job.stderr.decode().splitlines()[-1])
    )


def test_a_python_exception_is_shown_last() -> None:
    program = "import os\nassert os.environ['HOROSCALE_RANK'] != '0', 'no luck'"
    job = run_launcher("-np", 3, sys.executable, "-c", program)
    assert job.returncode == 1
    lines = job.stderr.splitlines()
    assert lines[-1] == b"    AssertionError: no luck"
    assert b"    Traceback (most recent call last):" in lines


def test_only_the_last_lines_are_repeated() -> None:
    job = run_launcher("-np", 1, "sh", "-c", "seq 1 1000 >&2; exit 1")
    repeated = [line for line in job.stderr.splitlines() if line.startswith(b"    ")]
    assert repeated == [f"    {number}".encode() for number in range(981, 1001)]


def test_survivors_have_time_to_report_by_themselves() -> None:
    # The survivor needs longer than the failure takes to be seen, and less than its two seconds.
    program = (
        "import os, sys, time\n"
        "if os.environ['HOROSCALE_RANK'] == '1': sys.exit('cause')\n"
        "time.sleep(0.5)\n"
        "sys.exit('consequence')\n"
    )
    job = run_launcher("-np", 2, sys.executable, "-c", program)
    assert job.returncode == 1
    assert b"[0]<stderr>:consequence" in job.stderr.splitlines()
    assert b"failed as well: rank 0 exit status 1" in job.stderr
    assert job.stderr.splitlines()[-1] == b"    cause"


def test_a_survivor_that_reports_a_failed_rank_is_not_the_first_failure() -> None:
    # Rank 0 exits first, but by its own words because of another rank.
    program = (
        "import os, sys\n"
        "if os.environ['HOROSCALE_RANK'] == '0':\n"
        "    sys.exit('horoscale._core.errors.RankFailedError: rank 1 failed')\n"
        "import time; time.sleep(0.5); sys.exit('the cause')\n"
    )
    job = run_launcher("-np", 2, sys.executable, "-c", program)
    assert b"rank 1 on " in job.stderr.splitlines()[-2]
    assert job.stderr.splitlines()[-1] == b"    the cause"


def test_survivors_are_told_to_end_and_then_killed() -> None:
    program = (
        "import os, signal, sys\n"
        "def on_term(*_):\n"
        "    print('told', flush=True)\n"
        "signal.signal(signal.SIGTERM, on_term)\n"
        "print('ready', flush=True)\n"
        "if os.environ['HOROSCALE_RANK'] == '1': sys.exit(3)\n"
        "while True: signal.pause()\n"
    )
    with Launcher("-np", 2, "--grace-seconds", 1, sys.executable, "-c", program) as job:
        status, out, _ = job.finish()
        assert status == 3
        assert b"[0]<stdout>:told" in out.splitlines()
        job.assert_nothing_left()


def test_a_rank_may_end_well_before_the_others(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "if os.environ['HOROSCALE_RANK'] == '0': sys.exit(0)\n"
        "print('rank 1 reads', open(sys.argv[1]).read().strip())\n"
    )
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with Launcher("-np", 2, "--verbose", sys.executable, "-c", program, pipe) as job:
        assert job.process.stderr is not None
        while b"rank 0 on" not in (line := job.process.stderr.readline()):
            assert line
        assert b"exit status 0" in line
        pipe.write_text("go on\n")
        status, out, _ = job.finish()
        assert (status, out) == (0, b"[1]<stdout>:rank 1 reads go on\n")


def test_children_that_a_job_leaves_are_ended_with_it() -> None:
    with Launcher("-np", 2, "sh", "-c", "setsid sleep 1000 & echo $!") as job:
        job.read_lines(2)
        assert job.finish()[0] == 0
        job.assert_nothing_left()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["/nonexistent/program"], b"command not found: '/nonexistent/program'"),
        (["no-such-program"], b"command not found: 'no-such-program'"),
        (["/tmp"], b"'/tmp' is a directory"),
        (["./script"], b"'./script' is not an executable program"),
        (["./no_interpreter"], b"can't start './no_interpreter'"),
        (["./bad_interpreter"], b"can't start './bad_interpreter'"),
    ],
)
def test_a_command_that_can_not_be_started(
    tmp_path: Path, command: list[str], message: bytes
) -> None:
    (tmp_path / "script").write_text("#!/bin/sh\n")
    for name, text in (("no_interpreter", "\0binary"), ("bad_interpreter", "#!/nonexistent\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    job = run_launcher("-np", 2, *command, cwd=tmp_path)
    assert job.returncode == 2
    assert message in job.stderr
    assert b"Traceback" not in job.stderr
