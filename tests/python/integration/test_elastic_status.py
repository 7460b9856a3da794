"""A rank queries the job's status while another hangs in an operation."""

from __future__ import annotations

import sys

from launcher_process import run_launcher

FIELDS = """
FIELDS = {
    "process", "host", "slot", "part", "rank", "progress", "reported_seconds_ago",
    "advanced_seconds_ago", "computing_seconds", "waiting_seconds", "computing_share", "sets",
}
"""

PROGRAM = """
import time
import numpy as np
import horoscale.numpy as hvd
from horoscale import elastic

hvd.init()
state = elastic.ObjectState(step=0)

def of_rank_0():
    told = elastic.status()
    assert (told["view"], told["size"]) == (1, 2), told
    return next(one for one in told["processes"] if one["rank"] == 0)

@elastic.run
def train(state):
    state.step = 5
    state.commit()
    if hvd.rank() == 0:
        hvd.allreduce(np.ones(1), name="late")  # hangs until the other has seen that
        return
    until = time.monotonic() + 30
    while not any(one["pending_operation"] == "late" for one in of_rank_0()["sets"]):
        assert time.monotonic() < until, of_rank_0()
        time.sleep(0.05)
    found = of_rank_0()
    assert found["progress"]["step"] == 5, found
    assert set(found) == FIELDS, found
    assert set(elastic.status()) == {"view", "size", "resets", "processes", "findings"}
    (its_set,) = found["sets"]
    assert (its_set["set"], its_set["ranks"], its_set["pending"]) == (0, "0-1", 1), its_set
    assert its_set["pending_seconds"] > 0
    print("seen", flush=True)
    hvd.allreduce(np.ones(1), name="late")

train(state)
"""

ALONE = """
import horoscale.numpy as hvd
from horoscale import elastic

hvd.init()
told = elastic.status()
assert set(told) == {"view", "size", "resets", "processes", "findings"}, told
(own,) = told["processes"]
assert set(own) == FIELDS, own
assert own["rank"] == hvd.rank() and own["sets"][0]["ranks"] == "0-1", own
hvd.barrier()
"""


def test_a_rank_sees_where_another_hangs() -> None:
    job = run_launcher("-np", 2, "--min-np", 2, sys.executable, "-c", FIELDS + PROGRAM)
    assert (job.returncode, job.stdout) == (0, b"[1]<stdout>:seen\n"), job.stderr


def test_a_job_that_is_not_elastic_tells_of_the_rank_alone() -> None:
    job = run_launcher("-np", 2, sys.executable, "-c", FIELDS + ALONE)
    assert job.returncode == 0, job.stderr
