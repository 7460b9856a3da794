"""A terminated benchmark leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
SECONDS = 60


def _commands_with(text: str) -> list[bytes]:
    """The command lines of all processes that contain this text."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        if text.encode() in command:
            found.append(command)
    return found


@pytest.mark.parametrize("when", ["starting", "measuring"])
def test_a_benchmark_that_is_terminated_leaves_nothing(when: str) -> None:
    shm = Path("/dev/shm")
    if not shm.is_dir():
        pytest.skip("there is no /dev/shm")
    command = [sys.executable, BENCHMARKS / "allreduce.py", "--sizes", "4096", "--rounds", "10000"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            deadline = time.monotonic() + SECONDS
            # The ranks of the first job meet at a socket with its name. The last job's socket
            # exists once the others have started.
            name = "horoscale" if when == "starting" else "horoscale-torch"
            pattern = f"horoscale-bench-{process.pid}-*/{name}"
            while not list(shm.glob(pattern)):
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.02)
            folder = str(next(shm.glob(pattern)).parent)
            os.kill(process.pid, signal.SIGTERM)
            _, errors = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert not Path(folder).exists()
    assert _commands_with(folder) == []
