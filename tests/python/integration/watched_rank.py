"""A rank that trains until the file `end` exists; rank 2 stalls while the file `stall` exists."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

import horoscale.numpy as hvd
from horoscale import elastic

FOLDER = Path(sys.argv[1])
HELD_S = 600.0  # upper bound; several tests may share the job

hvd.init()
state = elastic.ObjectState(step=0)


def held(name: str) -> None:
    until = time.monotonic() + HELD_S
    while (FOLDER / name).exists() and time.monotonic() < until:
        time.sleep(0.01)


@elastic.run
def train(state: elastic.ObjectState) -> None:
    (FOLDER / f"pid.{hvd.rank()}").write_text(str(os.getpid()))
    gradient = np.ones(1 << 18, np.float32)
    until = time.monotonic() + HELD_S
    while time.monotonic() < until:
        handle = hvd.allreduce_async(gradient, name="gradient.0")
        time.sleep(0.02)  # simulates the computation of a step
        if hvd.rank() == 2:
            held("stall")
        hvd.allreduce(gradient, name="gradient.1")
        hvd.synchronize(handle)
        state.step += 1
        state.commit()
        over = np.array([float((FOLDER / "end").exists())])
        if hvd.allreduce(over, name="end", op=hvd.Max)[0]:
            return


train(state)
