"""However a job ends, nothing of it is left."""

from __future__ import annotations

import os
import select
import signal
import sys
import time

import pytest
from launcher_process import PATIENCE_S, Launcher

# A rank with a child, like a data loader, and a process in its own session whose parent has exited.
RANK_WITH_CHILDREN = """
import os, signal, subprocess, sys
def report():
    os.write(1, b"%d\\n" % os.getpid())  # at once: the three share a pipe
def wait():
    while True: signal.pause()
if STUBBORN:
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
if os.fork() == 0:
    report()
    wait()
middle = os.fork()
if middle == 0:
    os.setsid()
    if os.fork() == 0:
        report()
        wait()
    os._exit(0)
os.waitpid(middle, 0)
report()
wait()
"""
PROCESSES_PER_RANK = 3


def rank_with_children(*, stubborn: bool = False) -> list[str]:
    return [sys.executable, "-c", f"STUBBORN = {stubborn}\n{RANK_WITH_CHILDREN}"]


@pytest.mark.parametrize("stubborn", [False, True])
@pytest.mark.parametrize("victim", ["launcher", "guard", "supervisor"])
def test_nothing_survives_a_kill_of(victim: str, stubborn: bool) -> None:
    command = rank_with_children(stubborn=stubborn)
    with Launcher("-np", 2, "--grace-seconds", 1, *command) as job:
        job.read_pids(2 * PROCESSES_PER_RANK)
        pid = job.process.pid if victim == "launcher" else getattr(job, victim)()
        os.kill(pid, signal.SIGKILL)
        status, _, err = job.finish()
        job.assert_nothing_left()
    if victim != "launcher":
        assert status == 1
        said = {"supervisor": b"ended by SIGKILL", "guard": b"was left by its guard process"}
        assert b"the supervisor on" in err
        assert said[victim] in err


def test_ranks_end_with_their_supervisor_even_if_nobody_else_ends_them() -> None:
    program = "import os, signal; print(os.getpid()); signal.pause()"
    with Launcher("-np", 2, sys.executable, "-c", program) as job:
        ranks = [os.pidfd_open(pid) for pid in job.read_pids(2)]
        supervisor = job.supervisor()
        os.kill(job.process.pid, signal.SIGSTOP)
        os.kill(supervisor, signal.SIGKILL)
        for rank in ranks:
            assert select.select([rank], [], [], PATIENCE_S)[0]
            os.close(rank)


def test_nothing_survives_a_kill_of_a_rank() -> None:
    with Launcher("-np", 2, "--grace-seconds", 1, "sh", "-c", 'echo $$; exec "$@"', "sh",
                  *rank_with_children()) as job:  # fmt: skip
        ranks = [
            int(line.rsplit(b":", 1)[1])
            for line in job.read_lines(2 * (PROCESSES_PER_RANK + 1))
            if line.startswith(b"[1]")
        ]
        os.kill(max(ranks, key=ranks.count), signal.SIGKILL)  # the shell became the rank
        status, _, err = job.finish()
        assert status == 128 + 9
        assert b"rank 1 on" in err
        job.assert_nothing_left()


def test_ctrl_c_reaches_the_ranks_and_lets_them_end() -> None:
    program = (
        "import signal\n"
        "try:\n"
        "    print('ready', flush=True); signal.pause()\n"
        "except KeyboardInterrupt:\n"
        "    print('saved', flush=True)\n"
    )
    with Launcher("-np", 2, sys.executable, "-c", program) as job:
        job.read_lines(2)
        job.process.send_signal(signal.SIGINT)
        status, out, err = job.finish()
        assert status == 128 + signal.SIGINT
        assert sorted(out.splitlines()) == [b"[0]<stdout>:saved", b"[1]<stdout>:saved"]
        assert err.splitlines()[-1] == b"horoscalerun: ended by SIGINT"
        job.assert_nothing_left()


def test_ctrl_c_kills_after_the_grace() -> None:
    with Launcher("-np", 2, "--grace-seconds", 0.5, *rank_with_children(stubborn=True)) as job:
        job.read_pids(2 * PROCESSES_PER_RANK)
        job.process.send_signal(signal.SIGINT)
        assert job.finish()[0] == 128 + signal.SIGINT
        job.assert_nothing_left()


def test_a_second_ctrl_c_kills_at_once() -> None:
    with Launcher("-np", 2, "--grace-seconds", 1000, *rank_with_children(stubborn=True)) as job:
        job.read_pids(2 * PROCESSES_PER_RANK)
        job.process.send_signal(signal.SIGINT)
        assert job.process.stderr is not None
        assert b"again to kill them" in job.process.stderr.readline()
        job.process.send_signal(signal.SIGINT)
        status, _, err = job.finish()
        assert status == 128 + signal.SIGINT
        assert b"SIGINT again: killing the ranks" in err
        job.assert_nothing_left()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_preemption_is_forwarded_to_the_rank_first_and_to_its_children_after_it(
    signum: signal.Signals,
) -> None:
    # The rank needs its data loader to finish the checkpoint.
    program = (
        "import os, signal\n"
        "def say(text): os.write(1, text.encode() + b'\\n')\n"  # two processes, one pipe
        f"signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM, {signum.value}}})\n"
        "(ask, asked), (answer, answered) = os.pipe(), os.pipe()\n"
        "if os.fork() == 0:\n"
        "    say('ready')\n"
        "    order = (os.read(ask, 1), signal.sigpending())\n"
        "    os.write(answered, b'y')\n"
        "    signal.sigwait({signal.SIGTERM})\n"
        "    say('loader %s %s' % order)\n"
        "else:\n"
        "    say('ready')\n"
        f"    signal.sigwait({{{signum.value}}})\n"
        "    say('checkpoint')\n"
        "    os.write(asked, b'x')\n"
        "    os.read(answer, 1)\n"
    )
    with Launcher("-np", 1, sys.executable, "-c", program) as job:
        job.read_lines(2)
        job.process.send_signal(signum)
        status, out, _ = job.finish()
        assert status == 128 + signum
        assert out.splitlines() == [b"[0]<stdout>:checkpoint", b"[0]<stdout>:loader b'x' set()"]
        job.assert_nothing_left()


def test_sigterm_kills_after_the_grace() -> None:
    with Launcher("-np", 2, "--grace-seconds", 0.5, *rank_with_children(stubborn=True)) as job:
        job.read_pids(2 * PROCESSES_PER_RANK)
        began = time.monotonic()
        job.process.terminate()
        assert job.finish()[0] == 128 + signal.SIGTERM
        assert time.monotonic() - began >= 0.5
        job.assert_nothing_left()


def test_a_stop_while_ranks_start_leaves_nothing() -> None:
    for _ in range(5):
        with Launcher("-np", 8, "--verbose", *rank_with_children()) as job:
            assert job.process.stderr is not None
            job.process.stderr.readline()  # the start order is in progress
            job.process.terminate()
            assert job.finish()[0] == 128 + signal.SIGTERM
            job.assert_nothing_left()
