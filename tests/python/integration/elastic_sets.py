"""Process sets of all kinds in a job in which a rank dies: elastic_sets.py FOLDER KILL_STEP.

Rank 3 kills itself at KILL_STEP. Each rank records the sets of each view; each step runs an
operation on every set. The job ends some steps after the rank was replaced.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import horoscale.numpy as hvd
from horoscale import elastic
from horoscale.elastic.membership import membership

FOLDER, KILL_STEP = Path(sys.argv[1]), int(sys.argv[2])

sets = {
    "even": elastic.surviving(lambda rank, size: rank % 2 == 0),
    "drop": elastic.surviving([0, 3], on_loss="drop"),
    "wait": elastic.surviving([1, 3], on_loss="wait"),
    "shrink": elastic.surviving([2, 3], on_loss="shrink"),
    "others": hvd.ProcessSet([0, 1]),
}
hvd.init(process_sets=[*sets.values()])
sets["added"] = hvd.add_process_set([0, 2, 3])
state = elastic.ObjectState(step=0, last=None)
log = (FOLDER / f"log.{os.getpid()}").open("a", buffering=1)


@elastic.run
def train(state: elastic.ObjectState) -> None:
    registered = {name: one.ranks for name, one in sets.items() if one.process_set_id is not None}
    view = membership().view
    assert view is not None
    log.write(json.dumps({"view": view.number, "rank": hvd.rank(), "sets": registered}) + "\n")
    if view.number > 1 and hvd.size() == 4:
        state.last = state.last or state.step + 5
    own = {name: sets[name] for name, ranks in registered.items() if hvd.rank() in ranks}
    while state.step != state.last:
        for name, one in own.items():
            total = hvd.allreduce(np.array([hvd.rank()]), op=hvd.Sum, name=name, process_set=one)
            assert total[0] == sum(registered[name]), (name, total)
        if state.step == KILL_STEP and view.number == 1 and hvd.rank() == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        state.step += 1
        if hvd.size() < 4:
            time.sleep(0.02)  # a replacement is starting
        state.commit()


train(state)
