"""Commits 100 MB while a thread writes every commit to disk, for benchmarks/elastic.py.

    elastic_commit.py ROUNDS FOLDER

Writes the seconds of commits, and of steps with and without the thread, to FOLDER/seconds.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

import horoscale.torch as hvd

WARM_UP = 3
STEPS = 5  # between two commits
ROUNDS, FOLDER = int(sys.argv[1]), Path(sys.argv[2])

torch.set_num_threads(1)
hvd.init()
model = torch.nn.Linear(5000, 5000, bias=False)
inputs = torch.randn(64, 5000)
state = hvd.elastic.TorchState(model, step=0)
seconds: dict[str, list[float]] = {
    "a commit of 100 MB": [],
    "a step": [],
    "a step while it is written": [],
}


def is_writing() -> bool:
    checkpointing = state._checkpointing
    assert checkpointing is not None
    return checkpointing._thread is not None and checkpointing._thread.is_alive()


def step() -> float:
    began = time.perf_counter()
    model(inputs).square().mean().backward()
    return time.perf_counter() - began


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> None:
    committed, alone, beside = seconds.values()
    for _ in range(ROUNDS + WARM_UP):
        while is_writing():
            time.sleep(0.01)  # it does not report when it is done
        alone += [step() for _ in range(STEPS)]
        state.step += 1
        began = time.perf_counter()
        state.commit()  # the thread starts writing
        committed.append(time.perf_counter() - began)
        busy = []
        while is_writing():
            busy.append(step())
        beside += busy[:-1]  # it finished during the last one


train(state)
(FOLDER / "seconds").write_text(json.dumps({name: all[WARM_UP:] for name, all in seconds.items()}))
