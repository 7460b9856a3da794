"""SIGUSR2: a rank prints what it waits for, and horoscalerun queries all ranks."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from launcher_process import PATIENCE_S, Launcher

# Rank 0 never calls the operation that blocks the others.
PROGRAM = """
import os, signal, sys, numpy, horoscale.numpy as hvd
hvd.init()
hvd.barrier()
print(os.getpid(), flush=True)
if hvd.rank() == 0:
    handle = hvd.allreduce_async(numpy.ones(3), name="metrics")
    open(sys.argv[1]).read()
hvd.allreduce(numpy.ones(3), name="loss")
if hvd.rank() == 0:
    hvd.synchronize(handle)
else:
    hvd.allreduce(numpy.ones(3), name="metrics")
"""


def ask_until(job: Launcher, ask: Callable[[], None], *texts: bytes) -> None:
    """Repeat the query until all texts have appeared, since ranks may not be waiting yet."""
    assert job.process.stderr is not None
    stderr = job.process.stderr.fileno()
    deadline = time.monotonic() + PATIENCE_S
    seen = b""
    while not all(text in seen for text in texts):
        assert time.monotonic() < deadline, f"only {seen.decode()}"
        ask()
        while select.select([stderr], [], [], 1.0)[0]:
            piece = os.read(stderr, 65536)
            assert piece, f"only {seen.decode()}"
            seen += piece


def test_horoscalerun_asks_all_ranks_what_they_wait_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # Shells between the launcher and two of the ranks; the signal would end them.
    command = ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-c", PROGRAM, pipe]
    with Launcher("-np", 3, *command) as job:
        job.read_pids(3)
        ask_until(
            job,
            lambda: job.process.send_signal(signal.SIGUSR2),
            b"[0]<stderr>:",
            b'allreduce "metrics" on process set 0',
            b'allreduce "loss" on process set 0 was called by ranks 1 and 2, waiting for rank 0',
            b"rank 1 of 3: 1 operations are not done; 1 threads are waiting; "
            b"ranks not lost: ranks 0 and ",
            b"rank 2 of 3: 1 operations",
            b"blocks its caller, is not planned yet: rank 0 decides",
        )
        pipe.write_text("go on\n")
        assert job.finish()[0] == 0


def test_a_rank_that_is_asked_goes_on_with_what_it_does(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with Launcher("-np", 2, sys.executable, "-c", PROGRAM, pipe) as job:
        pids = job.read_pids(2)

        def ask() -> None:
            for _ in range(100):
                for pid in pids:
                    os.kill(pid, signal.SIGUSR2)

        ask_until(job, ask, b"rank 0 of 2: ", b"rank 1 of 2: ")
        pipe.write_text("go on\n")
        assert job.finish()[0] == 0
