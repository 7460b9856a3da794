"""Process sets over the life of a job: thousands of them, and those that block each other."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.rank_processes import RankProcesses
from support.ranks import run_ranks

PROGRAM = Path(__file__).parent / "set_cycles.py"
RANKS = 4
CYCLES = int(os.environ.get("HOROSCALE_TEST_SET_CYCLES", "1000"))
SECONDS = 60 + CYCLES // 20
# What allocators may take once more, whatever the number of cycles.
ALLOWED = {"threads": 0, "descriptors": 0, "mappings": 4, "resident_kib": 1024}


@pytest.mark.timeout(SECONDS + 30)
def test_adding_using_and_removing_leaves_nothing(tmp_path: Path) -> None:
    with RankProcesses(RANKS, PROGRAM, "--cycles", str(CYCLES), folder=tmp_path) as job:
        reports = [json.loads(job.read_line(rank, SECONDS)) for rank in range(RANKS)]
        for rank in range(RANKS):
            job.wait(rank, SECONDS)
    for report in reports:
        for what, allowed in ALLOWED.items():
            assert report["after"][what] <= report["before"][what] + allowed, report


CROSSED = """
    import numpy as np
    import horoscale.numpy as hvd

    wide, narrow = hvd.ProcessSet([0, 1, 2]), hvd.ProcessSet([0, 1])
    hvd.init(process_sets=[wide, narrow])
    calls = [("in the wide set", wide), ("in the narrow set", narrow)]
    if hvd.rank() == 1:
        calls.reverse()
    if hvd.rank() >= 2:
        calls = calls[: 3 - hvd.rank()]
    try:
        for name, process_set in calls:
            hvd.allreduce(np.ones(2), name=name, process_set=process_set)
    except hvd.RankFailedError as error:
        print(f"set {error.process_set}: {error}")
"""


def test_calls_that_block_in_crossed_order_are_reported_by_name() -> None:
    limits = {
        "HOROSCALE_STALL_CHECK_TIME_SECONDS": "0.5",
        "HOROSCALE_STALL_SHUTDOWN_TIME_SECONDS": "2",
    }
    ended = run_ranks(4, CROSSED, **limits)
    warnings = ended[0].stderr  # rank 0 coordinates both sets
    assert '"in the wide set" on process set 1 has waited for' in warnings
    assert "for rank 1; ready: ranks 0 and 2" in warnings
    assert '"in the narrow set" on process set 2 has waited for' in warnings
    assert "for rank 0; ready: rank 1" in warnings
    assert "set 1:" in ended[0].stdout
    assert "in the wide set" in ended[0].stdout
    assert "set 2:" in ended[1].stdout
    assert "in the narrow set" in ended[1].stdout
    assert [one.returncode for one in ended] == [0] * 4


MISSING = """
    import socket
    import horoscale.numpy as hvd

    hvd.init(process_sets="dynamic")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(20)
        port = hvd.broadcast_object(server.getsockname()[1])
        if hvd.rank() == 0:
            for _ in range(2):  # until the others have given up
                server.accept()[0].close()
        else:
            try:
                hvd.add_process_set([1, 2])
            except hvd.RankFailedError as error:
                print(error)
            socket.create_connection(("127.0.0.1", port)).close()
"""


def test_a_rank_that_does_not_come_to_add_a_set_is_reported() -> None:
    limits = {
        "HOROSCALE_STALL_CHECK_TIME_SECONDS": "0.5",
        "HOROSCALE_STALL_SHUTDOWN_TIME_SECONDS": "1",
    }
    ended = run_ranks(3, MISSING, **limits)
    for text in (ended[0].stderr, ended[1].stdout, ended[2].stdout):
        assert "for rank 0; ready: ranks 1 and 2" in text
    assert [one.returncode for one in ended] == [0, 0, 0]
