"""Starts programs as the ranks of a job with only the HOROSCALE_* variables."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from dataclasses import dataclass
from textwrap import dedent

from horoscale._core import StoreServer


@dataclass
class Ended:
    """The status of a process; -9 if it was killed after its timeout."""

    returncode: int
    stdout: str
    stderr: str


def clean_environment() -> dict[str, str]:
    """The environment without any variables of a job."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HOROSCALE_", "HOROVOD_", "OMPI_", "PMI_", "PMIX_", "SLURM_"))
    }


def run_alone(script: str, seconds: float = 30, **variables: str) -> Ended:
    """Run a script in a process that belongs to no job."""
    return run_ranks(1, script, seconds, in_job=False, **variables)[0]


def run_ranks(
    size: int, script: str, seconds: float = 60, in_job: bool = True, **variables: str
) -> list[Ended]:
    """Run a script on each rank of a job, for at most `seconds` in all."""
    secret = secrets.token_hex(16)
    server = StoreServer("127.0.0.1", 0, secret) if in_job else None
    processes = []
    for rank in range(size):
        environment = clean_environment()
        if server is not None:
            environment |= {
                "HOROSCALE_RANK": str(rank),
                "HOROSCALE_SIZE": str(size),
                "HOROSCALE_RENDEZVOUS": f"127.0.0.1:{server.port}",
                "HOROSCALE_RENDEZVOUS_SERVED": "1",
                "HOROSCALE_SECRET": secret,
            }
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", dedent(script)],
                env=environment | variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    deadline = time.monotonic() + seconds
    try:
        return [_outcome(process, deadline) for process in processes]
    finally:
        if server is not None:
            server.close()


def _outcome(process: subprocess.Popen[str], deadline: float) -> Ended:
    try:
        stdout, stderr = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        stdout, stderr = process.communicate()
    return Ended(process.returncode, stdout, stderr)
