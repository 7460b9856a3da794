"""Messages in whole jobs: killed ranks, hosts, and reports on ranks that wait."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from support.rank_processes import RankProcesses

PATIENCE_S = 60
REPORT_SECONDS = 10.0  # for a loaded machine; NETWORK_TIMEOUT_SECONDS is 30

# Two ranks exchange messages endlessly; a third one never receives those sent to it.
EXCHANGE = """
import json, sys, time
import numpy as np
import horoscale.numpy as hvd

hvd.init()
n, others = int(sys.argv[1]), [rank for rank in range(3) if rank != int(sys.argv[2])]
out, into = np.ones(n), {rank: np.zeros(n) for rank in range(3)}
hvd.barrier()
print("ready", flush=True)
named = []
try:
    while True:
        sends = [hvd.P2POp(hvd.send, out, rank) for rank in others if rank != hvd.rank()]
        recvs = [hvd.P2POp(hvd.recv, into[rank], rank) for rank in others if rank != hvd.rank()]
        if hvd.rank() not in others:  # what is sent to it waits for ever
            time.sleep(3600)
        sends += [hvd.P2POp(hvd.send, out, int(sys.argv[2]), 5)] * (n > 10_000)
        hvd.batch(sends + recvs)
except hvd.RankFailedError as error:
    failed_at, named = time.monotonic(), [list(error.ranks)]
for call, *peer in ((hvd.send, 0), (hvd.recv, 0), (hvd.recv_any,)):
    try:
        call(out, *peer, tag=9)
    except hvd.RankFailedError as error:
        named.append(list(error.ranks))
print(json.dumps({"failed_at": failed_at, "named": named}), flush=True)
"""

# Rank 0 sends large messages to rank 1 endlessly.
STREAM = """
import json, sys, time
import numpy as np
import horoscale.numpy as hvd

hvd.init()
x = np.full(int(sys.argv[1]), 1.0)
hvd.barrier()
print("ready", flush=True)
number = 0
try:
    while True:
        number += 1
        if hvd.rank() == 0:
            x[:] = number
            hvd.send(x, 1)
        else:
            hvd.recv(x, 0)
            assert (x == number).all()
except hvd.RankFailedError as error:
    print(json.dumps({"failed_at": time.monotonic(), "named": list(error.ranks)}), flush=True)
"""

# Ranks 1 and 2 wait for each other, rank 0 for a message that nobody sends.
WAITS = """
import numpy as np
import horoscale.numpy as hvd

hvd.init()
hvd.barrier()
x = np.ones(100_000)
if hvd.rank() == 0:
    handle = hvd.send_async(x, 2, tag=77)
    hvd.recv_any(x, tag=41)
else:
    hvd.recv(x, 3 - hvd.rank(), tag=42)
"""

# Rank 0 sends messages that rank 1 views, and never releases.
VIEWS = """
import time
import numpy as np
import horoscale.numpy as hvd

hvd.init()
x = hvd.empty_shared(1_000_000)
x[:] = 7
hvd.barrier()
if hvd.rank() == 0:
    try:
        hvd.send(x, 1)
    except hvd.RankFailedError as error:
        print(*error.ranks, flush=True)
    assert (x == 7).all()
elif hvd.rank() == 1:
    view = hvd.recv_view(1_000_000, np.float32, 0)
    print("seen", flush=True)
    try:
        hvd.recv(np.zeros(1), 2)  # which nobody sends
    except hvd.RankFailedError:
        pass
    assert (view.tensor == 7).all()
    try:
        view.release()
    except hvd.RankFailedError as error:
        print(*error.ranks, flush=True)
else:
    time.sleep(3600)
"""

# Rank 1 releases its views after its job, or the set, has ended there.
LATE_RELEASES = """
import sys, time
import numpy as np
import horoscale.numpy as hvd

hvd.init()
trio = hvd.add_process_set([0, 1, 2], members_only=True, distinct=True)
x = hvd.empty_shared(1_000_000)
if hvd.rank() == 0:
    try:
        hvd.send(x, 1, process_set=trio)
    except hvd.RankFailedError as error:
        print(*error.ranks, flush=True)
elif hvd.rank() == 1:
    view = hvd.recv_view(1_000_000, np.float32, 0, process_set=trio)
    with view:
        print("seen", flush=True)
        if sys.argv[1] == "shutdown":
            hvd.shutdown()
        else:
            try:
                hvd.recv(np.zeros(1), 2, process_set=trio)  # which nobody sends
            except hvd.RankFailedError:
                assert hvd.remove_process_set(trio)
    view.release()
    print("released", flush=True)
else:
    time.sleep(3600)
"""

# A receive from any rank, where all possible senders wait for the receiver.
KNOT = """
import numpy as np
import horoscale.numpy as hvd

hvd.init()
hvd.barrier()
if hvd.rank() == 0:
    hvd.recv_any(np.ones(3), tag=41)
else:
    hvd.recv(np.ones(3), 0, tag=42)
"""

# Messages sent before a rank leaves can be received at any later time.
LEAVES = """
import numpy as np
import horoscale.numpy as hvd

hvd.init()
if hvd.rank() == 0:
    for n in (1, 1000, 2000):
        hvd.send(np.full(n, n), 1, tag=n)
    hvd.send(np.arange(3_000_000), 1)
else:
    assert (hvd.recv(np.zeros(3_000_000, int), 0) == np.arange(3_000_000)).all()
    failed = False
    try:
        hvd.barrier()
    except hvd.RankFailedError as error:
        failed = error.ranks == (0,)
    assert failed
    for n in (2000, 1000, 1):
        assert (hvd.recv(np.zeros(n, int), 0, tag=n) == n).all()
"""

# Rank 3 leaves, then rank 0 removes their set on its own. Messages among the others continue, and
# rank 0 receives from any of the remaining ranks.
DEPARTS = """
import numpy as np
import horoscale.numpy as hvd

hvd.init()
rank = hvd.rank()
own = hvd.add_process_set(range(4), distinct=True, members_only=True)
n = 100_000


def lost(call):
    try:
        call()
    except hvd.RankFailedError as error:
        return error.ranks == (3,)


hvd.barrier()
if rank == 0:
    assert lost(lambda: hvd.recv(np.zeros(1), 3, process_set=own))
    assert hvd.remove_process_set(own)
    into = np.zeros(n)
    assert lost(lambda: hvd.recv_any(into, tag=1))
    assert hvd.recv_any(into, tag=1) == 1 and into.all()
elif rank == 1:
    into = np.zeros(n)
    among_others = hvd.recv_async(into, 2, process_set=own)
    sent = hvd.send_async(np.ones(n), 0, process_set=own)
    assert lost(lambda: hvd.recv(np.zeros(1), 0, process_set=own))
    assert lost(lambda: hvd.synchronize(sent))
    hvd.send(np.ones(1), 2)
    assert hvd.synchronize(among_others).all()
    hvd.send(np.ones(n), 0, tag=1)
    hvd.send(np.ones(1), 2, tag=2)
elif rank == 2:
    hvd.recv(np.zeros(1), 1)
    hvd.send(np.ones(n), 1, process_set=own)
    hvd.recv(np.zeros(1), 1, tag=2)  # leaving sooner would fail rank 0's receive from any rank
"""

# A batch with a failed set and a working one.
TWO_SETS = """
import numpy as np
import horoscale.numpy as hvd

hvd.init()
pair = hvd.add_process_set([0, 1], members_only=True) if hvd.rank() < 2 else None
print("ready", flush=True)
n, peer = 3_000_000, 1 - hvd.rank()
try:
    hvd.recv(np.zeros(1), 2, tag=9)  # which nobody sends
except hvd.RankFailedError:
    pass
for step in range(3):
    into = np.zeros(n)
    try:
        hvd.batch(
            [
                hvd.P2POp(hvd.send, np.full(n, 1.0 * step + hvd.rank()), peer, 1, pair),
                hvd.P2POp(hvd.recv, into, peer, 1, pair),
                hvd.P2POp(hvd.send, np.ones(1), peer, 1),
            ]
        )
    except hvd.RankFailedError as error:
        print(*error.ranks, (into == step + peer).all(), flush=True)
hvd.barrier(pair)
"""


def program_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "program.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize("elements", [400_000, 4_000_000])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_is_killed_in_a_message(victim: int, elements: int, tmp_path: Path) -> None:
    program = program_file(tmp_path, STREAM)
    with RankProcesses(2, program, str(elements), folder=tmp_path) as job:
        for rank in range(2):
            assert job.read_line(rank, PATIENCE_S) == "ready"
        time.sleep(0.2)  # an arbitrary moment
        killed_at = time.monotonic()
        job.processes[victim].kill()
        report = json.loads(job.read_line(1 - victim, PATIENCE_S))
        assert report["failed_at"] - killed_at < REPORT_SECONDS
        assert report["named"] == [victim]
        job.wait(1 - victim, PATIENCE_S)


@pytest.mark.parametrize("elements", [3, 300_000])
@pytest.mark.parametrize("hosts", ["aaa", "aab"])
def test_a_killed_rank_is_named(elements: int, hosts: str, tmp_path: Path) -> None:
    victim = 2
    program = program_file(tmp_path, EXCHANGE)
    with RankProcesses(
        3,
        program,
        str(elements),
        str(victim),
        folder=tmp_path,
        variables_of={rank: {"HOROSCALE_HOSTNAME": host} for rank, host in enumerate(hosts)},
    ) as job:
        for rank in range(3):
            assert job.read_line(rank, PATIENCE_S) == "ready"
        time.sleep(0.2)  # an arbitrary moment
        killed_at = time.monotonic()
        job.processes[victim].kill()
        for rank in (0, 1):
            report = json.loads(job.read_line(rank, PATIENCE_S))
            assert report["failed_at"] - killed_at < REPORT_SECONDS
            assert report["named"] == [[victim]] * 4
            job.wait(rank, PATIENCE_S)


def test_a_batch_is_done_where_its_set_lives(tmp_path: Path) -> None:
    """Failures are raised once the rest is done."""
    with RankProcesses(3, program_file(tmp_path, TWO_SETS), folder=tmp_path) as job:
        for rank in range(3):
            assert job.read_line(rank, PATIENCE_S) == "ready"
        job.processes[2].kill()
        for rank in (0, 1):
            for _ in range(3):
                assert job.read_line(rank, PATIENCE_S) == "2 True"
            job.wait(rank, PATIENCE_S)


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_rank_is_killed_while_a_message_is_seen(victim: int, tmp_path: Path) -> None:
    with RankProcesses(3, program_file(tmp_path, VIEWS), folder=tmp_path) as job:
        assert job.read_line(1, PATIENCE_S) == "seen"
        job.processes[victim].kill()
        for rank in {0, 1} - {victim}:
            assert job.read_line(rank, PATIENCE_S) == str(victim)
            job.wait(rank, PATIENCE_S)


@pytest.mark.parametrize(("how", "left"), [("shutdown", "1"), ("removal", "2")])
def test_a_view_that_is_left_after_the_end(how: str, left: str, tmp_path: Path) -> None:
    with RankProcesses(3, program_file(tmp_path, LATE_RELEASES), how, folder=tmp_path) as job:
        assert job.read_line(1, PATIENCE_S) == "seen"
        if how == "removal":
            job.processes[2].kill()
        assert job.read_line(1, PATIENCE_S) == "released"
        assert job.read_line(0, PATIENCE_S) == left
        for rank in range(2):
            job.wait(rank, PATIENCE_S)


def test_a_receive_of_any_rank_that_nobody_can_serve(tmp_path: Path) -> None:
    logs = [tmp_path / f"log.{rank}" for rank in range(3)]
    with RankProcesses(
        3,
        program_file(tmp_path, KNOT),
        folder=tmp_path,
        variables={"HOROSCALE_STALL_CHECK_TIME_SECONDS": "0.5"},
        stderr_of={rank: str(log) for rank, log in enumerate(logs)},
    ):
        await_text(
            logs[0],
            r"ranks wait for each other.*rank 0 has been blocked in recv from any rank, tag 41 on "
            r"process set 0 for \d+ s, waiting for one of ranks 1 and 2; "
            r"rank 1 has been blocked in recv from rank 0",
        )


def test_a_rank_removes_a_set_that_another_has_left(tmp_path: Path) -> None:
    with RankProcesses(4, program_file(tmp_path, DEPARTS), folder=tmp_path) as job:
        for rank in range(4):
            job.wait(rank, PATIENCE_S)


def test_what_was_sent_before_a_rank_left(tmp_path: Path) -> None:
    with RankProcesses(2, program_file(tmp_path, LEAVES), folder=tmp_path) as job:
        for rank in range(2):
            job.wait(rank, PATIENCE_S)


def test_what_waits_is_reported(tmp_path: Path) -> None:
    logs = [tmp_path / f"log.{rank}" for rank in range(3)]
    with RankProcesses(
        3,
        program_file(tmp_path, WAITS),
        folder=tmp_path,
        variables={"HOROSCALE_STALL_CHECK_TIME_SECONDS": "0.5"},
        stderr_of={rank: str(log) for rank, log in enumerate(logs)},
    ) as job:
        await_text(
            logs[0],
            r"recv from any rank, tag 41 on process set 0 has waited for \d+ s: "
            r"no matching message was sent",
        )
        await_text(
            logs[0],
            r"send to rank 2, tag 77 on process set 0 has waited for \d+ s: no recv matches it",
        )
        await_text(logs[1], r"recv from rank 2, tag 42 on process set 0 has waited for \d+ s")
        await_text(
            logs[0],
            r"ranks wait for each other.*rank 1 has been blocked in recv from rank 2, tag 42 on "
            r"process set 0 for \d+ s, waiting for rank 2; rank 2 has been blocked in recv from "
            r"rank 1, tag 42 on process set 0 for \d+ s, waiting for rank 1",
        )
        for process in job.processes:
            os.kill(process.pid, signal.SIGUSR2)
        await_text(
            logs[0],
            r"recv from any rank, tag 41 on process set 0, called \d+ s ago, blocks its caller",
        )
        await_text(logs[2], r"1 messages on process set 0 have arrived that no recv matches")


def test_a_recv_that_waits_too_long_ends(tmp_path: Path) -> None:
    program = program_file(
        tmp_path,
        """
import numpy as np
import horoscale.numpy as hvd

hvd.init()
try:
    hvd.recv(np.ones(3), 1 - hvd.rank(), tag=42)
except hvd.RankFailedError as error:
    print(error.ranks, flush=True)
""",
    )
    with RankProcesses(
        2,
        program,
        folder=tmp_path,
        variables={
            "HOROSCALE_STALL_CHECK_TIME_SECONDS": "0.5",
            "HOROSCALE_STALL_SHUTDOWN_TIME_SECONDS": "1",
        },
    ) as job:
        assert job.read_line(0, PATIENCE_S) in {"(0,)", "(1,)"}
        for rank in range(2):
            job.wait(rank, PATIENCE_S)


def await_text(log: Path, pattern: str) -> None:
    """Wait until a line of the log matches."""
    deadline = time.monotonic() + PATIENCE_S
    while not re.search(pattern, log.read_text()):
        assert time.monotonic() < deadline, f"no {pattern!r} in {log.read_text()}"
        time.sleep(0.05)  # other processes write it
