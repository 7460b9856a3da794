"""The launcher of elastic jobs: ranks that use the driver's link directly, and real faults."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from elastic_launch import ElasticLaunch
from launcher_process import (
    PATIENCE_S,
    children_of,
    environment,
    launcher_command,
    run_launcher,
)
from support import namespaces
from support.namespaces import NetworkHosts

import horoscale.runner

needs_hosts = pytest.mark.skipif(namespaces.why_not() is not None, reason=str(namespaces.why_not()))


def test_survivors_go_on_without_rank_0_and_its_replacement_joins(tmp_path: Path) -> None:
    with ElasticLaunch(tmp_path, "-np", 3, "--min-np", 2, "--max-np", 3) as job:
        job.steps(view=1, count=3)
        job.hold_standbys()
        job.kill(0, view=1)
        survivors = job.steps(view=2, count=2)
        assert {event["size"] for event in survivors} == {2}
        job.let_standbys_join()
        assert len(job.steps(view=3, count=3)) == 3
        status, errors = job.end()
        assert status == 0, errors
        assert "rank 0 (slot 0 of" in errors
        (synced,) = {
            e["commit"] for e in job.events() if e["event"] == "synced" and e["number"] == 3
        }
        assert synced > 0
        for event in job.events():
            if event["event"] == "given":
                assert event["previous"][event["source"]] is not None


def test_deaths_during_recovery(tmp_path: Path) -> None:
    with ElasticLaunch(tmp_path, "-np", 4, "--min-np", 1, "--max-np", 4) as job:
        job.steps(view=1, count=4)
        job.kill(3, view=1)
        job.kill(0, view=2)  # as soon as it has received the view
        (last,) = job.wait_for(
            lambda e: e["event"] == "step" and e["size"] == 4 and e["number"] > 2
        )[:1]
        assert last["commit"] > 1
        status, errors = job.end()
        assert status == 0, errors


def test_the_death_of_a_standby_disturbs_nobody(tmp_path: Path) -> None:
    with ElasticLaunch(tmp_path, "-np", 2, "--min-np", 1, "--max-np", 2) as job:
        job.steps(view=1, count=2)
        job.hold_standbys()
        job.kill(1, view=1)
        (standby,) = job.wait_for(lambda e: e["event"] == "standby")
        assert standby["rank"] != 0
        os.kill(standby["pid"], signal.SIGKILL)
        job.let_standbys_join()
        assert {event["size"] for event in job.steps(view=3, count=2)} == {2}
        status, errors = job.end()
        assert status == 0, errors


def test_a_stopped_rank_is_evicted(tmp_path: Path) -> None:
    flags = ("-np", 3, "--min-np", 1, "--max-np", 3, "--evict-seconds", 3)
    with ElasticLaunch(tmp_path, *flags) as job:
        job.steps(view=1, count=3)
        job.kill(1, view=1, signum=signal.SIGSTOP)
        job.kill(2, view=1)
        job.steps(view=2, count=1)
        status, errors = job.end()
        assert status == 0, errors
        assert "rank 1 (slot 1 of" in errors
        assert "is killed: it has not asked for the next view within 3 s" in errors


def test_nothing_is_left_of_a_job_whose_launcher_is_killed(tmp_path: Path) -> None:
    with ElasticLaunch(tmp_path, "-np", 2, "--min-np", 1) as job:
        job.steps(view=1, count=2)
        job.launcher.process.kill()
        job.launcher.process.wait(PATIENCE_S)
        job.launcher.assert_nothing_left()


def test_a_job_without_survivors_fails(tmp_path: Path) -> None:
    with ElasticLaunch(tmp_path, "-np", 1, "--min-np", 1) as job:
        job.steps(view=1, count=1)
        job.kill(0, view=1)
        status, errors = job.ended()
        assert status == 1
        assert "the job has failed: no rank is left that holds the job's state" in errors


def test_the_reset_limit_ends_the_job(tmp_path: Path) -> None:
    with ElasticLaunch(tmp_path, "-np", 2, "--min-np", 1, "--reset-limit", 0) as job:
        job.steps(view=1, count=2)
        job.kill(1, view=1)
        status, errors = job.ended()
        assert status == 1
        assert "another view is needed after 0 (--reset-limit)" in errors


def test_too_few_ranks_for_too_long_end_the_job(tmp_path: Path) -> None:
    script = tmp_path / "hosts"
    script.write_text("#!/bin/sh\necho localhost:1\n")
    script.chmod(0o700)
    flags = ("--min-np", 2, "--host-discovery-script", script, "--elastic-timeout", 0.2)
    job = run_launcher(*flags, "true")
    assert job.returncode == 1
    assert b"(--elastic-timeout) there were no more than 1 of at least 2 ranks" in job.stderr


def test_hosts_come_and_go_as_the_script_says(tmp_path: Path) -> None:
    hosts, runs = tmp_path / "hosts", tmp_path / "runs"
    hosts.write_text("localhost:1\n")
    flags = ("--min-np", 1, "--host-discovery-script", f"cat {hosts}; echo >> {runs}")
    with ElasticLaunch(tmp_path, *flags) as job:
        job.steps(view=1, count=1)
        replace(hosts, "localhost:1\n127.0.0.1\n")  # without slots: nothing changes
        await_size(runs, runs.stat().st_size + 3)
        replace(hosts, "localhost:1\n127.0.0.1:1\n")
        steps = job.steps(view=2, count=2)
        assert {step["size"] for step in steps} == {2}
        (given,) = job.wait_for(lambda e: e["event"] == "given" and e["rank"] == 1)
        assert [member.split(":")[0] for member in given["members"]] == ["localhost", "127.0.0.1"]
        replace(hosts, "127.0.0.1:1\n")
        (left,) = job.wait_for(lambda e: e["event"] == "left")
        assert left["status"] == 0
        assert left["text"] == "localhost is not part of the job any more"
        (step,) = job.steps(view=3, count=1)
        assert step["commit"] > steps[0]["commit"]
        status, errors = job.end()
        assert status == 0, errors
        assert errors.count("line 2 gives no slots") == 1


@pytest.mark.parametrize("how", ["--drain", "SIGTERM"])
def test_a_drained_host_is_left_and_the_status_tells(how: str, tmp_path: Path) -> None:
    flags = ("-np", 2, "--min-np", 1, "-H", "localhost:1,127.0.0.1:1")
    with ElasticLaunch(tmp_path, *flags) as job:
        job.steps(view=1, count=2)
        pid = job.launcher.process.pid
        told = json.loads(ask("--status", "--json", "--job", pid))
        assert told["view"] == 1
        assert [one["host"] for one in told["processes"]] == ["localhost", "127.0.0.1"]
        assert "127.0.0.1" in ask("--status", "--job", pid)
        if how == "--drain":
            ask("--drain", "localhost", "--job", pid)
        else:  # to the first host's guard, which forwards it
            os.kill(children_of(pid)[0], signal.SIGTERM)
        (step,) = job.steps(view=2, count=1)
        assert step["size"] == 1
        status, errors = job.end()
        assert status == 0, errors
        assert "localhost is left at the next commit" in errors


@needs_hosts
def test_a_host_that_is_lost_is_used_again(tmp_path: Path) -> None:
    with NetworkHosts(2) as hosts:
        listed = ",".join(f"{name}:1" for name in hosts.names)
        flags = ("--remote-shell", namespaces.REMOTE_SHELL, "-np", 2, "--min-np", 1)
        flags += ("--blacklist-cooldown-range", 0.1, 1, "-H", listed)
        prefix = ("ip", "netns", "exec", hosts.names[0])
        with ElasticLaunch(tmp_path, *flags, prefix=prefix) as job:
            job.steps(view=1, count=2)
            job.hold_standbys()
            _, shell = children_of(job.launcher.process.pid)  # in start order
            os.kill(shell, signal.SIGKILL)
            (step,) = job.steps(view=2, count=1)
            assert step["size"] == 1
            job.let_standbys_join()
            assert len(job.steps(view=3, count=2)) == 2
            status, errors = job.end()
            assert status == 0, errors


@needs_hosts
@pytest.mark.parametrize("how", ["dies", "falls silent"])
def test_the_ranks_of_a_host_that_is_gone_are_not_waited_for(how: str, tmp_path: Path) -> None:
    """They do not report, but must not be treated like hanging ranks."""
    with NetworkHosts(2) as hosts:
        listed = ",".join(f"{name}:2" for name in hosts.names)
        flags = ("--remote-shell", namespaces.REMOTE_SHELL, "-np", 4, "--min-np", 2)
        flags += ("--evict-seconds", 10 * PATIENCE_S, "-H", listed)
        prefix = ("ip", "netns", "exec", hosts.names[0])
        variables = {"HOROSCALE_NETWORK_TIMEOUT_SECONDS": "5"}
        with ElasticLaunch(tmp_path, *flags, prefix=prefix, env=variables) as job:
            job.steps(view=1, count=4)
            dead = hosts.processes(1)
            if how == "falls silent":
                hosts.pull_cable(1)
            for pid in dead:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if how == "dies" else signal.SIGSTOP)
            assert {step["size"] for step in job.steps(view=2, count=2)} == {2}
            status, errors = job.end()
            assert status == 0, errors
            why = f"{hosts.names[1]}: has not answered for 5 s (NETWORK_TIMEOUT_SECONDS)"
            assert (why in errors) == (how == "falls silent")


def replace(hosts: Path, text: str) -> None:
    """Atomically replace what the script prints, since it may run at any moment."""
    beside = hosts.with_suffix(".new")
    beside.write_text(text)
    beside.replace(hosts)


def await_size(file: Path, size: int) -> None:
    """Wait until a file that other processes write has this size."""
    deadline = time.monotonic() + PATIENCE_S
    while file.stat().st_size < size:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ask(*arguments: object) -> str:
    """The output of a command in another terminal."""
    done = subprocess.run(
        launcher_command(*arguments), env=environment(), capture_output=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def test_run_returns_what_the_last_ranks_gave(tmp_path: Path) -> None:
    mark = tmp_path / "killed"

    def train(mark: str) -> tuple[int, int]:
        import os

        import numpy as np

        import horoscale.numpy as hvd
        from horoscale.common import job
        from horoscale.common.elastic_link import elastic_link
        from horoscale.common.process_set_registration import begin_process_sets

        hvd.init()
        if not job.is_standby() and hvd.rank() == 1 and not os.path.exists(mark):
            open(mark, "w").close()
            os._exit(3)
        while True:
            try:
                hvd.allreduce(np.ones(1))
                return hvd.rank(), hvd.size()
            except (hvd.HorovodInternalError, ValueError) as error:
                standby = job.is_standby()
                job.stop()
                link = elastic_link()
                assert link is not None
                view = link.next_view(commits=[], cause=None if standby else str(error))
                begin_process_sets(job.start(view=view), [], False)

    results = horoscale.runner.run(train, (str(mark),), np=2, min_num_proc=1, max_num_proc=2)
    assert results in ([(0, 1)], [(0, 2), (1, 2)])


def test_a_rank_that_dies_before_init_keeps_nobody_waiting(tmp_path: Path) -> None:
    program = f"""
import os
import horoscale.numpy as hvd
if os.environ["HOROVOD_RANK"] == "1":
    open({str(tmp_path / "died")!r}, "x").close()
    os._exit(3)
hvd.init()
print(os.environ["HOROVOD_ELASTIC"], hvd.rank(), hvd.size(), os.environ["HOROVOD_SIZE"])
"""
    flags = ("-np", 3, "--min-np", 2, "--max-np", 3, "--start-timeout", 600)
    job = run_launcher(*flags, sys.executable, "-c", program)
    assert job.returncode == 0, job.stderr
    # A standby may have got this far, too.
    assert {b"[0]<stdout>:1 0 2 2", b"[1]<stdout>:1 1 2 2"} <= set(job.stdout.splitlines())
    assert b"rank 1 (slot 1 of" in job.stderr


def test_a_link_that_somebody_closed_is_named() -> None:
    program = "import horoscale.numpy as hvd; hvd.init()"
    words = f"[sys.executable, '-c', {program!r}]"
    wrapper = f"import subprocess, sys; sys.exit(subprocess.run({words}).returncode)"
    job = run_launcher("-np", 1, "--min-np", 1, sys.executable, "-c", wrapper)
    assert job.returncode == 1
    assert b"pass close_fds=False to subprocess" in job.stderr
