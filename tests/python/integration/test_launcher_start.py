"""The environment in which ranks start."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from launcher_process import Launcher, run_launcher, sorted_lines

from horoscale.runner.cores import available_cores

PRINT_ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)))"


def environments(
    size: int, *flags: object, env: Mapping[str, str | None] | None = None
) -> list[dict]:
    """The environment of each rank of a job."""
    job = run_launcher("-np", size, *flags, sys.executable, "-c", PRINT_ENVIRONMENT, env=env)
    assert job.returncode == 0, job.stderr
    by_rank = {}
    for line in job.stdout.splitlines():
        prefix, text = line.split(b":", 1)
        by_rank[int(prefix[1 : prefix.index(b"]")])] = json.loads(text)
    assert sorted(by_rank) == list(range(size))
    return [by_rank[rank] for rank in range(size)]


def test_each_rank_is_told_who_it_is_under_both_names() -> None:
    for rank, environment in enumerate(environments(3)):
        for package in ("HOROSCALE", "HOROVOD"):
            told = {
                name.removeprefix(f"{package}_"): value
                for name, value in environment.items()
                if name.startswith(package) and name.endswith(("RANK", "SIZE", "CONTROLLER"))
            }
            assert told == {
                "RANK": str(rank),
                "SIZE": "3",
                "LOCAL_RANK": str(rank),
                "LOCAL_SIZE": "3",
                "CROSS_RANK": "0",
                "CROSS_SIZE": "1",
                "CONTROLLER": "gloo",
            }
            assert environment[f"{package}_HOSTNAME"]


def test_the_ranks_share_a_rendezvous_and_a_fresh_secret() -> None:
    stale = {"HOROSCALE_SECRET_FILE": "/nonexistent", "HOROVOD_SECRET": "x"}
    jobs = [environments(2, env=stale) for _ in range(2)]
    for ranks in jobs:
        assert ranks[0]["HOROSCALE_SECRET"] == ranks[1]["HOROSCALE_SECRET"]
        assert len(bytes.fromhex(ranks[0]["HOROSCALE_SECRET"])) == 32
        assert ranks[0]["HOROSCALE_RENDEZVOUS"] == ranks[1]["HOROSCALE_RENDEZVOUS"]
        assert ranks[0]["HOROSCALE_RENDEZVOUS"].startswith("127.0.0.1:")
        assert ranks[0]["HOROSCALE_RENDEZVOUS_SERVED"] == "1"
        assert not stale.keys() & ranks[0].keys()
    assert jobs[0][0]["HOROSCALE_SECRET"] != jobs[1][0]["HOROSCALE_SECRET"]


def test_the_secret_is_in_no_command_line_and_no_log() -> None:
    program = "import os, signal; print(os.environ['HOROSCALE_SECRET']); signal.pause()"
    with Launcher("-np", 2, "--verbose", sys.executable, "-c", program) as job:
        secret = job.read_lines(2)[0].split(b":", 1)[1].strip()
        commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in job.processes()]
        assert len(commands) == 5  # the launcher, the supervisor, its guard, and the ranks
        assert not [command for command in commands if secret in command]
        job.process.terminate()
        _, _, err = job.finish()
        assert secret not in err


@pytest.mark.parametrize("size", [1, 2])
def test_threads_are_shared_out_unless_the_user_has_said(size: int) -> None:
    share = str(max(1, available_cores() // size))
    unset = environments(size, env={"OMP_NUM_THREADS": None})
    assert {rank["OMP_NUM_THREADS"] for rank in unset} == {share}
    chosen = environments(size, env={"OMP_NUM_THREADS": "5"})
    assert {rank["OMP_NUM_THREADS"] for rank in chosen} == {"5"}


def test_python_ranks_are_unbuffered_unless_the_user_has_said() -> None:
    assert environments(1)[0]["PYTHONUNBUFFERED"] == "1"
    assert environments(1, env={"PYTHONUNBUFFERED": ""})[0]["PYTHONUNBUFFERED"] == ""


def test_more_ranks_than_cores() -> None:
    job = run_launcher("-np", 16, "sh", "-c", "echo $HOROSCALE_RANK of $HOROSCALE_SIZE")
    assert job.returncode == 0, job.stderr
    assert sorted_lines(job.stdout) == sorted(
        f"[{r}]<stdout>:{r} of 16".encode() for r in range(16)
    )


def test_standard_input_is_empty() -> None:
    job = run_launcher("-np", 2, sys.executable, "-c", "import sys; print(repr(sys.stdin.read()))")
    assert sorted_lines(job.stdout) == [b"[0]<stdout>:''", b"[1]<stdout>:''"]


def test_ranks_start_in_the_launchers_directory_with_its_environment(tmp_path: Path) -> None:
    undecodable = os.fsdecode(b"\xff\xfe")
    job = run_launcher(
        "-np", 1, "sh", "-c", 'pwd; echo "$ODD"', env={"ODD": undecodable}, cwd=tmp_path
    )
    assert job.stdout.splitlines() == [
        b"[0]<stdout>:" + os.fsencode(tmp_path),
        b"[0]<stdout>:\xff\xfe",
    ]


def test_each_rank_leads_its_own_session() -> None:
    program = "import os; print(os.getsid(0) == os.getpgid(0) == os.getpid())"
    job = run_launcher("-np", 2, sys.executable, "-c", program)
    assert sorted_lines(job.stdout) == [b"[0]<stdout>:True", b"[1]<stdout>:True"]


def test_ranks_inherit_no_descriptors() -> None:
    program = "import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1])"
    job = run_launcher("-np", 2, sys.executable, "-c", program)
    assert sorted_lines(job.stdout) == [b"[0]<stdout>:[0, 1, 2]", b"[1]<stdout>:[0, 1, 2]"]


def test_host_names_of_this_machine_are_one_host(tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("# comment\nlocalhost slots=2  # two\n\n127.0.0.1:1\n")
    for flags in (["-H", "localhost:2,127.0.0.1:1"], ["--hostfile", hostfile]):
        ranks = environments(3, *flags)
        assert {rank["HOROSCALE_HOSTNAME"] for rank in ranks} == {"localhost"}
        assert [rank["HOROSCALE_LOCAL_RANK"] for rank in ranks] == ["0", "1", "2"]


def test_two_dashes_end_the_options() -> None:
    job = run_launcher("-np", 1, "--", "echo", "-np", "--")
    assert job.stdout == b"[0]<stdout>:-np --\n"
