"""Jobs on several hosts, which this machine plays: the remote shell runs its command here."""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
import time
from pathlib import Path

import pytest
from launcher_process import Launcher, children_of, run_launcher, sorted_lines

import horoscale
from horoscale.runner.protocol import VERSION, encode

# CMD host program arguments: sets the host that it plays; hosts with some names misbehave.
REMOTE_SHELL = """#!/bin/sh
host=$1
shift
case $host in
  old*) cat "$(dirname "$0")/hello"; exit;;
  evil*) cat "$(dirname "$0")/$host"; exec cat > /dev/null;;
  gone*) echo "ssh: connect to host $host port 22: No route to host" >&2; exit 255;;
  slow*) exec sleep 1000;;
  chatty*) echo "Welcome to $host"; echo "quota exceeded" >&2;;
  bare*) exec env -i HOME=/home/of/$host PATH=/bin:/usr/bin "$@";;
esac
exec env PLAYED_HOST=$host "$@"
"""
DESCRIBE = (
    "import json, os\n"
    "names = ('HOSTNAME', 'RANK', 'LOCAL_RANK', 'LOCAL_SIZE', 'CROSS_RANK', 'CROSS_SIZE')\n"
    "told = [os.environ['HOROSCALE_' + name] for name in names]\n"
    "print(json.dumps([os.environ.get('PLAYED_HOST'), *told]))"
)
LONG = 600  # seconds, beyond any test's time: what ends has not waited for it


@pytest.fixture
def shell(tmp_path: Path) -> Path:
    path = tmp_path / "shell"
    path.write_text(REMOTE_SHELL)
    path.chmod(0o755)
    return path


def outputs(stdout: bytes) -> list:
    """The JSON that each rank printed, in rank order."""
    lines = [line.split(b">:", 1) for line in stdout.splitlines()]
    by_rank = sorted((int(origin[1 : origin.index(b"]")]), text) for origin, text in lines)
    return [json.loads(text) for _, text in by_rank]


def test_ranks_of_a_host_are_consecutive_and_know_their_places(shell: Path) -> None:
    flags = ("--remote-shell", shell, "-H", "a:2,b:1,c:3", "-np", 6)
    job = run_launcher(*flags, sys.executable, "-c", DESCRIBE)
    assert job.returncode == 0, job.stderr
    assert outputs(job.stdout) == [
        ["a", "a", "0", "0", "2", "0", "3"],
        ["a", "a", "1", "1", "2", "0", "2"],
        ["b", "b", "2", "0", "1", "1", "3"],
        ["c", "c", "3", "0", "3", "2", "3"],
        ["c", "c", "4", "1", "3", "1", "2"],
        ["c", "c", "5", "2", "3", "0", "1"],
    ]


def test_fewer_ranks_than_slots_leave_the_last_hosts_out(shell: Path, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a slots=2\nfe80::1 slots=1  # without a link\ngone slots=4\n")
    flags = ("--remote-shell", shell, "--hostfile", tmp_path / "hosts", "-np", 3)
    job = run_launcher(*flags, sys.executable, "-c", DESCRIBE)
    assert job.returncode == 0, job.stderr
    assert [line[0] for line in outputs(job.stdout)] == ["a", "a", "fe80::1"]


def test_unreachable_hosts_are_told_together_and_nothing_starts(
    shell: Path, tmp_path: Path
) -> None:
    flags = ("--remote-shell", shell, "-H", "a,gone1,b,slow,gone2", "-np", 5)
    job = run_launcher(*flags, "--start-timeout", 2, "touch", tmp_path / "started")
    assert job.returncode == 1
    why = "exit status 255; ssh: connect to host {} port 22: No route to host"
    assert job.stderr.decode().splitlines() == [
        "horoscalerun: no rank was started, because of 3 of 5 hosts:",
        f"    gone1: {why.format('gone1')}",
        "    slow: did not start within 2 s (--start-timeout)",
        f"    gone2: {why.format('gone2')}",
    ]
    assert not (tmp_path / "started").exists()


def test_the_time_for_hosts_may_come_from_the_environment(shell: Path) -> None:
    flags = ("--remote-shell", shell, "-H", "a,slow", "-np", 2)
    job = run_launcher(*flags, "true", env={"HOROSCALE_START_TIMEOUT": "1"})
    assert job.returncode == 1
    assert b"slow: did not start within 1 s (--start-timeout)" in job.stderr
    job = run_launcher(*flags, "true", env={"HOROSCALE_START_TIMEOUT": "soon"})
    assert job.returncode == 2
    assert b"START_TIMEOUT: expected a number of seconds, not 'soon'" in job.stderr


def test_a_remote_shell_that_does_not_exist_is_named() -> None:
    job = run_launcher("--remote-shell", "/no/shell", "-H", "a,b", "-np", 2, "true")
    assert job.returncode == 1
    assert job.stderr.count(b"'/no/shell' can't be started") == 2


@pytest.mark.parametrize(
    "hello",
    [
        {"kind": "hello", "version": 1, "host": "its name", "pid": 1},
        {"kind": "hello", "version": 99, "machine": "its name", "pid": 1},
        {"kind": "hello", "version": 2, "machine": "its name", "pid": 1, "host": 0},
    ],
    ids=["before", "after", "impostor"],
)
def test_what_does_not_speak_as_a_supervisor_is_refused(shell: Path, hello: dict) -> None:
    (shell.parent / "hello").write_bytes(encode(hello))
    job = run_launcher("--remote-shell", shell, "-H", "a,old", "-np", 2, "true")
    assert job.returncode == 1
    assert b"    old: can't be understood: " in job.stderr
    assert b"Traceback" not in job.stderr


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1], ids=["older", "newer"])
def test_another_version_is_refused(shell: Path, version: int) -> None:
    hello = {"kind": "hello", "version": version, "machine": "m", "pid": 1}
    (shell.parent / "hello").write_bytes(encode(hello))
    job = run_launcher("--remote-shell", shell, "-H", "a,old", "-np", 2, "true")
    assert job.returncode == 1
    assert job.stderr.decode().splitlines()[-1] == (
        f"    old: can't be understood: its supervisor uses protocol version {version}, "
        f"the launcher version {VERSION}: install the same horoscale on all hosts"
    )


def test_what_login_scripts_print_does_no_harm(shell: Path) -> None:
    job = run_launcher("--remote-shell", shell, "-H", "chatty:2", "-np", 2, "echo", "hello")
    assert sorted_lines(job.stdout) == [b"[0]<stdout>:hello", b"[1]<stdout>:hello"]
    assert job.stderr == b"horoscalerun: chatty: quota exceeded\n"


def test_what_the_host_lacks_is_told(shell: Path) -> None:
    job = run_launcher("--remote-shell", shell, "-H", "a,b", "-np", 2, "/no/such/program")
    assert job.returncode == 2
    assert b"cannot start '/no/such/program' on " in job.stderr


def test_the_environment_that_other_hosts_get(shell: Path) -> None:
    program = "import json, os; print(json.dumps(dict(os.environ)))"
    given = {
        "HOROSCALE_CACHE_CAPACITY": "7",
        "HOROVOD_CYCLE_TIME": "3",
        "NCCL_DEBUG": "INFO",
        "OMP_NUM_THREADS": "3",
        "MINE": "passed",
        "OTHER": "not passed",
        "HOME": "/home/of/the/launcher",
        "HOROSCALE_SECRET_FILE": "/of/another/job",
    }
    flags = ("-x", "MINE", "-x", "YOURS=a=b", "--log-level", "error")
    job = run_launcher(
        *("--remote-shell", shell, "-H", "bare", "-np", 1, *flags),
        *(sys.executable, "-c", program),
        env=given,
    )
    assert job.returncode == 0, job.stderr
    (found,) = outputs(job.stdout)
    expected = given | {
        "HOME": "/home/of/bare",
        "YOURS": "a=b",
        "HOROSCALE_LOG_LEVEL": "error",
        "PATH": os.environ["PATH"],
        "PYTHONUNBUFFERED": "1",
    }
    for name in ("OTHER", "HOROSCALE_SECRET_FILE"):
        del expected[name]
        assert name not in found
    assert expected.items() <= found.items()


def test_what_looks_like_a_credential_stays_here(shell: Path) -> None:
    """Unless -x passes it on. The launcher names what it omits, without the values."""
    secret = {
        "TF_VAR_db": "hunter2",
        "TF_TOKEN_app_terraform_io": "hunter2",
        "TORCH_HUB_token": "hunter2",
        "CONDA_PASSWORD": "hunter2",
        "NCCL_API_KEY": "hunter2",
        "HOROVOD_DB_SECRET": "hunter2",
    }
    program = (
        "import os, sys\n"
        "sys.exit(any('hunter2' in value for value in os.environ.values())\n"
        "         or os.environ.get('PYTHON_TOKEN') != 'wanted')"
    )
    job = run_launcher(
        *("--remote-shell", shell, "-H", "bare:2", "-np", 2, "-x", "PYTHON_TOKEN"),
        *(sys.executable, "-c", program),
        env=secret | {"PYTHON_TOKEN": "wanted", "HOROSCALE_SECRET": "not inherited"},
    )
    assert job.returncode == 0, job.stderr
    assert job.stderr.decode().splitlines() == [
        "horoscalerun: not forwarded to other hosts, because their names look like those of "
        f"credentials: {', '.join(sorted(secret))}; use -x NAME to forward one"
    ]


def test_exports_reach_the_ranks_of_this_host_too() -> None:
    job = run_launcher("-np", 1, "-x", "A=1", "-x", "B", "sh", "-c", "echo $A$B", env={"B": "2"})
    assert job.stdout == b"[0]<stdout>:12\n"


def test_the_secret_goes_through_pipes_only(shell: Path) -> None:
    program = "import os, signal; print(os.environ['HOROSCALE_SECRET']); signal.pause()"
    flags = ("--remote-shell", shell, "-H", "a,b", "-np", 2, "--verbose")
    with Launcher(*flags, sys.executable, "-c", program) as job:
        secret = job.read_lines(2)[0].split(b":", 1)[1].strip()
        for pid in job.processes():
            assert secret not in Path(f"/proc/{pid}/cmdline").read_bytes()
        supervisors = [pid for shell in children_of(job.process.pid) for pid in children_of(shell)]
        assert len(supervisors) == 2
        for pid in [job.process.pid, *supervisors]:
            assert secret not in Path(f"/proc/{pid}/environ").read_bytes()
        job.process.terminate()
        assert secret not in job.finish()[2]


def test_a_failure_on_one_host_ends_the_job_and_names_it(shell: Path) -> None:
    program = ["sh", "-c", "[ $HOROSCALE_RANK != 1 ] || { echo why >&2; exit 7; }; sleep 1000"]
    with Launcher("--remote-shell", shell, "-H", "a,b,c", "-np", 3, *program) as job:
        status, _, err = job.finish()
        assert status == 7
        assert err.splitlines()[-2:] == [
            b"horoscalerun: rank 1 on b failed first: exit status 7; its last lines on stderr:",
            b"    why",
        ]
        job.assert_nothing_left()


def test_a_function_on_several_hosts(shell: Path) -> None:
    def where() -> tuple[str, str]:
        return os.environ["PLAYED_HOST"], os.environ["HOROSCALE_RANK"]

    options = ["--remote-shell", str(shell)]
    results = horoscale.run(where, np=3, hosts="a:2,b:1", options=options)
    assert results == [("a", "0"), ("a", "1"), ("b", "2")]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_the_ranks_of_all_hosts(shell: Path, signum: signal.Signals) -> None:
    program = f"trap 'echo saved; exit' {signum.value}; echo ready; while :; do sleep 0.1; done"
    with Launcher("--remote-shell", shell, "-H", "a,b", "-np", 2, "sh", "-c", program) as job:
        job.read_lines(2)
        job.process.send_signal(signum)
        status, out, _ = job.finish()
        assert status == 128 + signum
        assert sorted_lines(out) == [b"[0]<stdout>:saved", b"[1]<stdout>:saved"]
        job.assert_nothing_left()


def test_an_interrupt_while_hosts_are_awaited_ends_it_at_once(shell: Path) -> None:
    flags = ("--remote-shell", shell, "-H", "a,slow", "-np", 2, "--verbose")
    flags += ("--start-timeout", LONG)
    with Launcher(*flags, "true") as job:
        assert job.process.stderr is not None
        assert b"a: supervisor is process" in job.process.stderr.readline()
        job.process.send_signal(signal.SIGINT)
        assert job.finish()[0] == 128 + signal.SIGINT
        job.assert_nothing_left()


# ---------------------------------------------------------------- more hosts than one starts

MANY = 40  # the launcher starts 32, and eight of those start another one each


def hosts(prefix: str = "host") -> str:
    return ",".join(f"{prefix}{number}" for number in range(MANY))


def test_supervisors_start_others_where_there_are_many(shell: Path) -> None:
    flags = ("--remote-shell", shell, "-H", hosts(), "-np", MANY)
    job = run_launcher(*flags, sys.executable, "-S", "-c", DESCRIBE)
    assert job.returncode == 0, job.stderr
    ranks = outputs(job.stdout)
    assert [line[:3] for line in ranks] == [
        [f"host{rank}", f"host{rank}", str(rank)] for rank in range(MANY)
    ]


def test_hosts_behind_one_that_is_gone_are_still_tried(shell: Path, tmp_path: Path) -> None:
    """Host 2 would have started host 3, and host 7 host 8."""
    names = [f"host{number}" for number in range(MANY)]
    names[2], names[8] = "gone2", "gone8"
    flags = ("--remote-shell", shell, "-H", ",".join(names), "-np", MANY)
    job = run_launcher(*flags, "touch", tmp_path / "started")
    assert job.returncode == 1
    lines = job.stderr.decode().splitlines()
    assert lines[0] == f"horoscalerun: no rank was started, because of 2 of {MANY} hosts:"
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["gone2", "gone8"]
    assert not (tmp_path / "started").exists()


def test_a_relay_goes_on_when_its_own_ranks_have_ended(shell: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    program = f'[ $HOROSCALE_RANK != {MANY - 1} ] || {{ echo "waits"; cat {pipe}; }}'
    flags = ("--remote-shell", shell, "-H", hosts(), "-np", MANY, "--grace-seconds", 0.1)
    with Launcher(*flags, "--verbose", "sh", "-c", program) as job:
        job.read_lines(1)
        assert job.process.stderr is not None
        ended = 0
        while ended < MANY - 1:
            ended += b"exit status 0" in job.process.stderr.readline()
        time.sleep(0.5)  # longer than the grace period before supervisors kill leftovers
        with pipe.open("wb") as writer:
            writer.write(b"x" * (8 << 20) + b"\n")  # more than a relay buffers
        status, out, err = job.finish()
        assert (status, len(out)) == (0, len(f"[{MANY - 1}]<stdout>:") + (8 << 20) + 1), err
        job.assert_nothing_left()


@pytest.mark.parametrize("victim", ["launcher", "relay"])
def test_nothing_survives_where_supervisors_relay(shell: Path, victim: str) -> None:
    flags = ("--remote-shell", shell, "-H", hosts(), "-np", MANY, "--grace-seconds", LONG)
    program = "trap '' TERM; echo $$; while :; do sleep 1000; done"
    with Launcher(*flags, "sh", "-c", program) as job:
        job.read_pids(MANY)
        pids = [pid for guard in children_of(job.process.pid) for pid in children_of(guard)]
        assert len(pids) == 32
        relay = next(pid for pid in pids if len(children_of(pid)) == 2)  # a rank and a link
        os.kill(job.process.pid if victim == "launcher" else relay, signal.SIGKILL)
        status, _, err = job.finish()
        job.assert_nothing_left()
        if victim == "relay":
            assert (status, b"ended by SIGKILL" in err) == (1, True), err


HELLO = {"kind": "hello", "version": VERSION, "machine": "m", "pid": 1}


def said_lines(stderr: bytes) -> list[str]:
    """The launcher's output: printable lines, and no traceback."""
    lines = stderr.decode().split("\n")
    assert lines.pop() == ""
    assert all(line.isprintable() for line in lines), lines
    assert not any("Traceback" in line for line in lines), lines
    return lines


def test_frames_that_no_supervisor_sends(shell: Path) -> None:
    """Each error is reported in the launcher's own words, in one line."""
    bad = {
        "is not JSON": b"HSR1" + struct.pack("!II", 40_000, 0) + b"[" * 40_000,
        "announces": b"HSR1" + struct.pack("!II", 1 << 20, 0),
        "no hello came first": encode({"kind": "note", "text": "x"}),
        "an unknown report": encode({"kind": "\x1b[2J" * 999}),
        "is '1', not a number": encode(HELLO | {"pid": "1"}),
        "is True, not a number": encode(HELLO | {"pid": True}),
        "without machine": encode({"kind": "hello", "version": VERSION, "pid": 1}),
        "about host 999": encode(HELLO | {"host": 999}),
        "is {}, not a number": encode(HELLO | {"host": {}}),
    }
    for index, stream in enumerate(bad.values()):
        (shell.parent / f"evil{index}").write_bytes(stream)
    hosts = ",".join(f"evil{index}" for index in range(len(bad)))
    job = run_launcher("--remote-shell", shell, "-H", hosts, "-np", len(bad), "echo")
    assert job.returncode == 1
    first, *rest = said_lines(job.stderr)
    assert first == f"horoscalerun: no rank was started, because of {len(bad)} of {len(bad)} hosts:"
    for index, (what, line) in enumerate(zip(bad, rest, strict=True)):
        assert line.startswith(f"    evil{index}: can't be understood: "), line
        assert what in line
        assert len(line) < 300


@pytest.mark.parametrize(
    ("report", "what"),
    [
        (HELLO, "a second hello"),
        ({"kind": "exit", "rank": 0, "status": 0}, "rank 0, which is elsewhere"),
        ({"kind": "exit", "rank": 1, "status": 256}, "is 256, not an exit status"),
        (
            {"kind": "output", "rank": 1, "stream": "result"},
            "a result of rank 1, which has no task",
        ),
        ({"kind": "output", "rank": 7, "stream": "stdout"}, "rank 7, which is elsewhere"),
        ({"kind": "lost", "error": "was lost", "greeted": 0}, "is 0, not true or false"),
    ],
)
def test_reports_that_can_not_be(shell: Path, report: dict, what: str) -> None:
    (shell.parent / "evil").write_bytes(encode(HELLO) + encode(report))
    job = run_launcher("--remote-shell", shell, "-H", "slow,evil", "-np", 2, "echo")
    assert job.returncode == 1
    (_, line) = said_lines(job.stderr)
    assert line.startswith("    evil: can't be understood: ")
    assert what in line


def test_text_of_others_is_escaped_in_the_launchers_lines(shell: Path) -> None:
    text = "a\x1b[2J\rhoroscalerun: all is well\n\u202eb\ud800"
    reports = [HELLO | {"machine": text}, {"kind": "note", "text": text}]
    reports += [{"kind": "lost", "error": text, "greeted": True}]
    (shell.parent / "evil").write_bytes(b"".join(map(encode, reports)))
    job = run_launcher("--remote-shell", shell, "-H", "slow,evil", "-np", 2, "--verbose", "echo")
    assert job.returncode == 1
    escaped = r"a\x1b[2J\rhoroscalerun: all is well\n\u202eb\ud800"
    assert [escaped in line for line in said_lines(job.stderr)].count(True) == 4


@pytest.mark.parametrize(("length", "shown"), [(1, 1000), (60_000, 5)], ids=["lines", "text"])
def test_a_host_that_goes_on_and_on_is_cut_short(shell: Path, length: int, shown: int) -> None:
    notes = [{"kind": "note", "text": "x" * length}] * (2 * shown)
    reports = [HELLO, *notes, {"kind": "lost", "error": "is tired", "greeted": True}]
    (shell.parent / "evil").write_bytes(b"".join(map(encode, reports)))
    job = run_launcher("--remote-shell", shell, "-H", "evil", "-np", 1, "echo")
    assert job.returncode == 1
    assert said_lines(job.stderr) == [
        *[f"horoscalerun: evil: {'x' * length}"] * shown,
        "horoscalerun: evil: further messages are omitted",
        "horoscalerun: no rank was started, because of a host:",
        "    evil: is tired",
    ]


def test_a_rank_can_not_write_into_the_launchers_report() -> None:
    program = r"printf '\033[31mred\033[0m\033]0;title\007\n' >&2; exit 3"
    job = run_launcher("-np", 1, "sh", "-c", program)
    assert job.returncode == 3
    assert said_lines(job.stderr.partition(b"\n")[2])[1:] == [r"    red\x1b]0;title\x07"]
