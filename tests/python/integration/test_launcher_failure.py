"""A rank that fails ends the job, and is named."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from launcher_process import Launcher, run_launcher


def shell(script: str) -> list[str]:
    """A program that runs the script on rank 1, and waits forever on all others."""
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


def test_one_traceback_of_all_ranks_is_shown_once() -> None:
    """On the console; each rank's file has the full traceback."""
    program = "print('begins', flush=True)\nraise ValueError('no luck')"
    job = run_launcher("-np", 4, sys.executable, "-c", program)
    lines = job.stderr.splitlines()
    # A rank that is slow to start refers to the others.
    headers = [line for line in lines if b"Traceback (most recent" in line]
    referring = [line for line in lines if b"(the same traceback as that of rank" in line]
    assert headers[-1].startswith(b"    ")  # the report's traceback
    shown = headers[0].split(b"<")[0]
    if shown == b"[0-3]":
        assert len(headers) == 2
        assert not referring
        assert b"[0-3]<stderr>:ValueError: no luck" in lines
    else:
        assert referring
    assert lines[-1] == b"    ValueError: no luck"


@pytest.mark.parametrize("full", [False, True])
def test_our_own_frames_are_shown_on_demand(full: bool) -> None:
    program = "import horoscale.numpy as hvd; hvd.rank()"
    job = run_launcher(
        "-np", 1, sys.executable, "-c", program, env={"HOROSCALE_FULL_TRACEBACK": str(int(full))}
    )
    text = job.stderr.decode()
    assert ("horoscale/common/" in text) == full
    assert ("HOROSCALE_FULL_TRACEBACK=1 shows them" in text) != full
    for start in ("[0]<stderr>:", "    "):
        assert f'{start}  File "<string>", line 1, in <module>' in text
    assert text.splitlines()[-1].startswith("    ValueError: ")


def test_a_traceback_is_not_held_back_for_long() -> None:
    """A rank that prints one and continues is shown."""
    program = (
        "import sys, time, traceback\n"
        "try: 1 / 0\n"
        "except ZeroDivisionError: traceback.print_exc()\n"
        "sys.stderr.flush(); time.sleep(1000)\n"
    )
    with Launcher("-np", 2, sys.executable, "-c", program) as job:
        assert job.process.stderr is not None
        while b"ZeroDivisionError" not in (line := job.process.stderr.readline()):
            assert line


LEAVING = {
    "after shutdown": (
        "hvd.init()\nif hvd.rank() != 1: hvd.allreduce(np.ones(2), name='x')\nhvd.shutdown()\n",
        "rank 1 left the job",
    ),
    "without a goodbye": (
        "hvd.init()\nif hvd.barrier() or hvd.rank() == 1: os._exit(0)\n"
        "hvd.allreduce(np.ones(2), name='x')\n",
        "RankFailedError: rank 1 failed: ",
    ),
    "before init": (
        "if os.environ['HOROSCALE_RANK'] == '1': sys.exit(0)\nhvd.init()\n",
        "HorovodInternalError: ",
    ),
}


@pytest.mark.parametrize(("program", "why"), LEAVING.values(), ids=LEAVING)
def test_a_rank_that_leaves_while_others_need_it_is_named_first(program: str, why: str) -> None:
    program = f"import os, sys, numpy as np, horoscale.numpy as hvd\n{program}"
    # A short timeout for ranks that wait in init() for one that never arrives.
    env = {} if "hvd.init()\nif" in program else {"HOROSCALE_START_TIMEOUT": "2"}
    job = run_launcher("-np", 3, sys.executable, "-c", program, env=env)
    assert job.returncode == 1
    told = [line for line in job.stderr.decode().splitlines() if line.startswith("horoscalerun:")]
    host = os.uname().nodename
    assert told[0].startswith(
        f"horoscalerun: rank 1 on {host} ended first: with exit status 0, while other ranks needed"
    )
    assert told[1].startswith("horoscalerun: failed because of that: rank")
    assert why in job.stderr.decode().splitlines()[-1]


def test_a_rank_that_ended_well_is_mentioned_but_not_blamed(tmp_path: Path) -> None:
    """If the others don't report that they needed it, its exit may have been correct."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    program = '[ $HOROSCALE_RANK = 1 ] || { read line < "$0"; echo "no luck" >&2; exit 3; }'
    with Launcher("-np", 2, "--verbose", "sh", "-c", program, pipe) as job:
        assert job.process.stderr is not None
        while b": exit status 0" not in (line := job.process.stderr.readline()):
            assert line
        pipe.write_text("go on\n")
        status, _, err = job.finish()
    assert status == 3
    host = os.uname().nodename
    assert err.decode().splitlines()[-3:] == [
        "horoscalerun: ended with exit status 0: rank 1",
        f"horoscalerun: rank 0 on {host} failed first: exit status 3; its last lines on stderr:",
        "    no luck",
    ]


def test_only_the_last_lines_are_repeated() -> None:
    job = run_launcher("-np", 1, "sh", "-c", "seq 1 1000 >&2; exit 1")
    repeated = [line for line in job.stderr.splitlines() if line.startswith(b"    ")]
    assert repeated == [f"    {number}".encode() for number in range(981, 1001)]


def test_survivors_have_time_to_report_by_themselves() -> None:
    # The survivor's exit takes longer than detecting the failure, but less than its two seconds.
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
    # Rank 0 exits first, but its output blames another rank.
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
        (["./no_interpreter"], b"cannot start './no_interpreter'"),
        (["./bad_interpreter"], b"cannot start './bad_interpreter'"),
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
