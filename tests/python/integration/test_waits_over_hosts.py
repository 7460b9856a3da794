"""Reports on deadlocks across process sets, with ranks on two hosts."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

from support.rank_processes import RankProcesses

PATIENCE_S = 60
HOSTS = "abab"  # names only: their ranks are linked by TCP
# Ranks 1 and 2, of different hosts, block in two sets in crossed order; rank 3 waits with them.
PROGRAM = """
import numpy as np
import horoscale.numpy as hvd

wide, narrow = hvd.ProcessSet([1, 2, 3]), hvd.ProcessSet([1, 2])
hvd.init(process_sets=[wide, narrow])
hvd.barrier()
calls = {0: [], 1: [("x", wide), ("y", narrow)], 2: [("y", narrow), ("x", wide)], 3: [("x", wide)]}
for name, process_set in calls[hvd.rank()]:
    hvd.allreduce(np.ones(2), name=name, process_set=process_set)
hvd.allreduce(np.ones(2), name="the end")
"""


def test_a_circle_over_sets_and_hosts(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    logs = [tmp_path / f"log.{rank}" for rank in range(len(HOSTS))]
    with RankProcesses(
        len(HOSTS),
        program,
        folder=tmp_path,
        variables={"HOROSCALE_STALL_CHECK_TIME_SECONDS": "0.5"},
        variables_of={rank: {"HOROSCALE_HOSTNAME": host} for rank, host in enumerate(HOSTS)},
        stderr_of={rank: str(log) for rank, log in enumerate(logs)},
    ) as job:
        # A set's lowest rank reports who is missing, and rank 0 reports the cycle.
        await_text(
            logs[1], r'"x" on process set 1 has waited for .* for rank 2; ready: ranks 1 and 3'
        )
        await_text(logs[1], r'"y" on process set 2 has waited for .* for rank 1; ready: rank 2')
        await_text(
            logs[0],
            r'ranks wait for each other.*rank 1 has been blocked in allreduce "x" on process set 1 '
            r'for \d+ s, waiting for rank 2; rank 2 has been blocked in allreduce "y" on process '
            r"set 2 for \d+ s, waiting for rank 1",
        )
        for process in job.processes:
            process.send_signal(signal.SIGUSR2)
        peers = ("1-3", "0, 2 and 3", "0, 1 and 3", "0-2")
        for log, others in zip(logs, peers, strict=True):
            await_text(log, f"not lost: ranks {others}\n")
            await_text(log, r"process set 0 of .*: \d+ operations pending; last plan entry \d+")
        for rank, name, number in ((1, "x", 1), (2, "y", 2), (3, "x", 1)):
            blocked = rf'allreduce "{name}" on process set {number}, called \d+ s ago, blocks its'
            await_text(logs[rank], blocked)
            await_text(logs[rank], rf"process set {number} of .*: 1 operations pending; last plan")


def await_text(log: Path, pattern: str) -> None:
    """Wait until a line of the log matches."""
    deadline = time.monotonic() + PATIENCE_S
    while not re.search(pattern, log.read_text()):
        assert time.monotonic() < deadline, f"no {pattern!r} in {log.read_text()}"
        time.sleep(0.05)  # other processes write it
