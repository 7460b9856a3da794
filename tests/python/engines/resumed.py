"""Counts committed steps until it is told to end, or five more if it is told to finish."""

from __future__ import annotations

import os

import numpy as np

import horoscale.numpy as hvd
from horoscale import elastic

hvd.init()
state = elastic.ObjectState(step=0)


@elastic.run
def train(state: elastic.ObjectState) -> None:
    if hvd.rank() == 0:
        print(f"begins at step {state.step}", flush=True)
    last = state.step + 5 if os.environ.get("FINISH") or os.path.exists("finish") else 1_000_000
    while state.step < last:
        hvd.allreduce(np.ones(4), name="gradient")
        state.step += 1
        state.commit()
        if hvd.rank() == 0 and state.step % 10 == 0 and state.step <= 100:
            print(f"step {state.step}", flush=True)
    if hvd.rank() == 0:
        print(f"finished at step {state.step}", flush=True)


train(state)
