"""Messages between hosts with separate networks, and ranks that are killed during them."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
from support import namespaces
from support.namespaces import NetworkHosts
from support.rank_processes import RankProcesses
from test_hosts import run_on

pytestmark = pytest.mark.skipif(namespaces.why_not() is not None, reason=str(namespaces.why_not()))

PATIENCE_S = 120
REPORT_SECONDS = 10.0  # the message takes three times this long
EXAMPLE = Path(__file__).parents[3] / "examples" / "pipeline_two_stages.py"
HOST_OF = (0, 0, 1)

# Rank 1 sends rank 2, on the other host, a message that takes half a minute; rank 0 waits for
# messages of both. Rank 2 reports when the first part has arrived, and the last has not.
MIDDLE = """
import json, sys, time
import numpy as np
import horoscale.numpy as hvd

hvd.init()
n, how = 80_000_000, sys.argv[1]
hvd.barrier()
named, handles = [], []
large = np.ones(n, np.uint8)
if hvd.rank() == 0:
    handles = [hvd.recv_any_async(np.zeros(3), tag=1), hvd.recv_async(np.zeros(3), 2, tag=2)]
elif hvd.rank() == 1:
    out = large if how == "private" else hvd.empty_shared(n, dtype=np.uint8)
    out[:] = 1
    handles = [hvd.send_async(out, 2, tag=3), hvd.recv_async(np.zeros(3), 2, tag=2)]
else:
    into = np.zeros(n, np.uint8)
    handles = [hvd.recv_async(into, 1, tag=3)]
    while into[0] == 0:
        time.sleep(0.001)  # others write it
    assert into[-1] == 0
    print("middle", flush=True)


def attempt(call):
    try:
        call()
    except hvd.RankFailedError as error:
        named.append(list(error.ranks))


for handle in handles:
    attempt(lambda: hvd.synchronize(handle))
failed_at = time.monotonic()
for peer in {0, 1, 2} - {hvd.rank()}:
    attempt(lambda: hvd.send(large, peer, tag=4))
    attempt(lambda: hvd.recv(large, peer, tag=4))
    attempt(lambda: hvd.send_object("text", peer))
attempt(lambda: hvd.recv_any(large, tag=4))
print(json.dumps([len(handles), named, failed_at]), flush=True)
"""


@pytest.mark.parametrize(
    ("victim", "how", "encrypt"),
    [(1, "private", "0"), (2, "private", "0"), (2, "shared", "0"), (1, "private", "1")],
    ids=["sender", "receiver", "receiver of shared memory", "sender, encrypted"],
)
def test_a_rank_is_killed_in_the_middle_of_a_message(
    victim: int, how: str, encrypt: str, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(MIDDLE)
    with NetworkHosts(2) as hosts:
        hosts.limit_rate("20mbit")
        with RankProcesses(
            3,
            program,
            how,
            folder=tmp_path,
            variables={"HOROSCALE_ENCRYPT": encrypt},
            hosts=hosts,
            host_of=HOST_OF,
        ) as job:
            assert job.read_line(2, PATIENCE_S) == "middle"
            killed_at = time.monotonic()
            job.processes[victim].kill()
            for rank in {0, 1, 2} - {victim}:
                pending, named, failed_at = json.loads(job.read_line(rank, PATIENCE_S))
                assert failed_at - killed_at < REPORT_SECONDS
                assert named == [[victim]] * (pending + 7)
                job.wait(rank, PATIENCE_S)


@pytest.mark.timeout(2 * PATIENCE_S)
def test_a_pipeline_of_two_stages() -> None:
    pytest.importorskip("torch")
    with NetworkHosts(2) as hosts:
        output = run_on(hosts, "1,1", sys.executable, EXAMPLE)
    assert "the same weights as in one process: True" in output
