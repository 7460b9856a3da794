"""Process sets over the life of a job: thousands of them, and sets that block each other."""

from __future__ import annotations

import json
import os
from pathlib import Path
from textwrap import dedent

import pytest
from support.rank_processes import RankProcesses
from support.ranks import run_ranks

PROGRAM = Path(__file__).parent / "set_cycles.py"
RANKS = 4
CYCLES = int(os.environ.get("HOROSCALE_TEST_SET_CYCLES", "1000"))
SECONDS = 60 + CYCLES // 20
# Growth caused by allocators, whatever the number of cycles.
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
        server.settimeout(60)
        port = hvd.broadcast_object(server.getsockname()[1])
        if hvd.rank() == 0:
            others = [server.accept()[0] for _ in range(2)]
            for other in others:  # nobody leaves until both have given up
                other.close()
        else:
            try:
                hvd.add_process_set([1, 2])
            except hvd.RankFailedError as error:
                print(error)
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.recv(1)
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


DEATH = """
    import os, signal, sys, time
    import numpy as np
    import horoscale.numpy as hvd

    hvd.init()
    victim = int(os.environ["VICTIM"])
    try:
        hvd.barrier()
    except hvd.RankFailedError:
        pass  # the victim had come, and is gone already
    if hvd.rank() == victim:
        print(time.monotonic(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if hvd.rank() < 3:
        try:
            hvd.add_process_set([0, 1, 2], members_only=True)
        except hvd.RankFailedError as error:
            print(time.monotonic(), error.ranks, error)
    survivors = [rank for rank in range(4) if rank != victim]
    rest = hvd.add_process_set(survivors, members_only=True)
    print(hvd.allreduce(np.array([10 ** hvd.rank()]), op=hvd.Sum, process_set=rest)[0])
    print(hvd.remove_process_set(rest))
"""


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("hosts", ["aaaa", "abab"])
def test_a_member_that_dies_is_named_and_the_others_go_on(victim: int, hosts: str) -> None:
    """Including the death of the leader."""
    variables = {f"HOST_{rank}": host for rank, host in enumerate(hosts)}
    script = """
    import os
    os.environ["HOROSCALE_HOSTNAME"] = os.environ["HOST_" + os.environ["HOROSCALE_RANK"]]
    """
    ended = run_ranks(4, dedent(script) + dedent(DEATH), VICTIM=str(victim), **variables)
    died_at = float(ended[victim].stdout)
    for rank in set(range(4)) - {victim}:
        *raised, total, removed = ended[rank].stdout.splitlines()
        assert ended[rank].returncode == 0, ended[rank].stderr
        assert total == str(1111 - 10**victim)
        assert removed == "True"
        if rank < 3:
            raised_at, text = raised[0].split(" ", 1)
            assert text.startswith(f"({victim},) rank {victim} failed"), text
            assert float(raised_at) - died_at < 1.0


LOST = """
    import os, signal
    import numpy as np
    import horoscale.numpy as hvd

    hvd.init()
    hvd.barrier()
    if hvd.rank() > 0:
        one = hvd.add_process_set([1, 2, 3], members_only=True)
        if hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            hvd.allreduce(np.ones(2), process_set=one)
        except hvd.RankFailedError as error:
            print(error.ranks, error.process_set == one.process_set_id)
        print(hvd.remove_process_set(one))  # each by itself
        pair = hvd.add_process_set([2, 3], members_only=True)
        print(hvd.allgather_object(hvd.rank(), process_set=pair))
        hvd.barrier(pair)
"""


def test_each_member_removes_a_set_that_has_lost_one() -> None:
    ended = run_ranks(4, LOST)
    for rank in (2, 3):
        assert ended[rank].stdout.splitlines() == ["(1,) True", "True", "[2, 3]"], ended[rank]
        assert ended[rank].returncode == 0


ABSENT = """
    import socket
    import horoscale.numpy as hvd

    hvd.init()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        port = hvd.broadcast_object(server.getsockname()[1])
        if hvd.rank() == 0:
            others = [server.accept()[0] for _ in range(2)]
            for other in others:  # nobody leaves until both have given up
                other.close()
        else:
            try:
                hvd.add_process_set([0, 1, 2] if hvd.rank() == 1 else [1, 2], members_only=True)
            except hvd.RankFailedError as error:
                print(error)
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.recv(1)
"""


def test_a_member_that_does_not_come_is_reported() -> None:
    limits = {
        "HOROSCALE_STALL_CHECK_TIME_SECONDS": "0.5",
        "HOROSCALE_STALL_SHUTDOWN_TIME_SECONDS": "1",
    }
    ended = run_ranks(3, ABSENT, **limits)
    for rank, waits in enumerate(["", "of ranks 0-2 by its members", "of ranks 1 and 2 by"]):
        assert ended[rank].returncode == 0, ended[rank].stderr
        for text in (ended[rank].stderr, ended[rank].stdout):
            assert waits in text
    assert "for rank 0, which has not called it or is waiting for other members" in ended[1].stdout
    assert "s for rank 1, which has not called it" in ended[2].stdout
