"""A rank of an elastic job of `make faults`: elastic_rank.py FOLDER SEED STEPS_A_COMMIT

It trains until the file `finish` exists in FOLDER, and records events in FOLDER/log.PID and, at the
end, done.PID.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
from elastic_problem import SAMPLES, Problem, bits_of

import horoscale.numpy as hvd
from horoscale import elastic
from horoscale.elastic.membership import membership

FOLDER, SEED, STEPS_A_COMMIT = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])

log = (FOLDER / f"log.{os.getpid()}").open("a", buffering=1)


def note(event: str, **what: object) -> None:
    view = membership().view
    number = 0 if view is None else view.number
    line = {"time": time.monotonic(), "pid": os.getpid(), "event": event, "view": number, **what}
    log.write(json.dumps(line) + "\n")


even = elastic.surviving(lambda rank, size: rank % 2 == 0)
hvd.init(process_sets=[even])
problem = Problem(SEED)
counts = np.zeros(SAMPLES, np.int64)
state = elastic.ObjectState(
    values=problem.weights(), plan=problem.plan, step=0, views=[], counts=counts
)


@elastic.run
def train(state: elastic.ObjectState) -> None:
    view = membership().view
    assert view is not None
    hosts = [member.rsplit(":", 2)[0] for member in view.members]
    state.views = [*state.views, [state.step, hosts]]
    note("begin", step=state.step, members=view.members)
    assert even.ranks == list(range(0, hvd.size(), 2)), even
    first, finished = True, False
    while not finished:
        if even.included():
            ones = hvd.allreduce(np.ones(1, np.float32), op=hvd.Sum, process_set=even)
            assert ones[0] == even.size()
        state.values, share = problem.step(state.values, hvd.rank(), hvd.size(), hvd.allreduce)
        said = np.zeros(SAMPLES + 1, np.int64)
        said[share] = 1
        said[-1] = (FOLDER / "finish").exists()
        heard = hvd.allreduce(said, op=hvd.Sum)
        state.counts = state.counts + heard[:-1]
        state.step += 1
        finished = heard[-1] > 0
        time.sleep(0.005)
        if finished or state.step % STEPS_A_COMMIT == 0:
            state.commit()
            note("commit", step=state.step, full=first)
            first = False


train(state)
right = bool((state.counts == problem.counts()).all())
(FOLDER / f"done.{os.getpid()}.part").write_text(
    json.dumps(
        {"views": state.views, "steps": state.step, "bits": bits_of(state.values), "counts": right}
    )
)
(FOLDER / f"done.{os.getpid()}.part").rename(FOLDER / f"done.{os.getpid()}")
