"""A script that trains on ranks that die: elastic_training.py FOLDER STEPS [KILL_STEP RANK]...

The first process with RANK at KILL_STEP kills itself. Each rank that reaches the end writes the
bits of its weights to FOLDER.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time

import numpy as np
from elastic_journal import Journal, arguments

import horoscale.numpy as hvd
from horoscale import elastic
from horoscale.elastic.membership import membership

FOLDER, STEPS, KILLS = arguments()

SIZE = int(os.environ.get("FULL_SIZE", "0"))  # training continues with fewer ranks than this

even = elastic.surviving(lambda rank, size: rank % 2 == 0)
hvd.init(process_sets=[even])
samples = np.random.default_rng(9).standard_normal((200, 5)).astype(np.float32)
plan = elastic.DataPlan(len(samples), 3, seed=2)
state = elastic.ObjectState(weights=np.full(4, hvd.rank(), np.float32), plan=plan, step=0, views=[])
journal = Journal(FOLDER, state, KILLS)


@elastic.run
def train(state) -> None:
    journal.note("begin", source=membership().source, rank=hvd.rank())
    first = True
    state.views = [*state.views, [state.step, hvd.size()]]
    assert even.ranks == list(range(0, hvd.size(), 2)), even
    while state.step < STEPS or hvd.size() < SIZE:
        if not plan.position < plan.length:
            plan.next_epoch()
        share = plan.take(hvd.rank(), hvd.size())
        if journal.dies():
            os.kill(os.getpid(), signal.SIGKILL)
        if even.included():
            ones = hvd.allreduce(np.ones(1, np.float32), op=hvd.Sum, process_set=even)
            assert ones[0] == even.size()
        x, y = samples[share.indices, :4], samples[share.indices, 4]
        gradient = ((x @ state.weights - y) @ x) * np.float32(share.weight / max(1, len(share)))
        state.weights = state.weights - 0.1 * hvd.allreduce(gradient, op=hvd.Average)
        state.step += 1
        if hvd.size() < SIZE:
            time.sleep(0.02)  # a replacement is starting
        state.commit()
        if first:
            journal.note("step")
            first = False


state.register_reset_callbacks([lambda: journal.note("reset")])
train(state)
bits = hashlib.sha256(state.weights.tobytes()).hexdigest()
journal.end(bits)
