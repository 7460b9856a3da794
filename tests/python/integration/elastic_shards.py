"""A job whose ranks have shards: elastic_shards.py FOLDER STEPS [STEP RANK]...

The first process with RANK at STEP kills itself before it commits. A rank's shards are arrays whose
values depend on their creator's rank and the step; the final ones are written to FOLDER, and
checked after each change. With PAUSE_AT in the environment it prints a line after that step and
waits forever; with DIES_LOADING a rank dies when it first loads shards. With DIES_KEEPING rank 3 of
4 dies when only rank 1 has all of the first copies.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import horoscale.numpy as hvd
from horoscale import elastic
from horoscale.elastic.shards import ShardKeeper

FOLDER, STEPS = Path(sys.argv[1]), int(sys.argv[2])
KILLS = list(zip(map(int, sys.argv[3::2]), map(int, sys.argv[4::2]), strict=True))

SIZE = int(os.environ.get("FULL_SIZE", "0"))  # training continues with fewer ranks than this


def made(owner: int, step: int) -> dict[str, Any]:
    bits = np.random.default_rng(owner).standard_normal(1000 + owner)
    return {"moments": bits * step, "empty": np.zeros(0), "step": step}


class Sharded(elastic.ObjectState):
    owners: tuple[int, ...] = ()  # the rank whose shards this rank has
    own: Mapping[str, Any] = {}

    def shards(self) -> Mapping[str, Any]:
        return self.own

    def load_shards(self, shards: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
        mark = FOLDER / "died-loading"
        if os.environ.get("DIES_LOADING") == str(hvd.rank()) and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        self.owners = ()
        for _, one in shards:
            for owner, values in one.items():
                self.owners += (int(owner),)
                expected = made(int(owner), self.step)
                assert values["step"] == expected["step"] == self.step, (values, self.step)
                assert values["moments"].tobytes() == expected["moments"].tobytes()
        self.update()

    def update(self) -> None:
        self.own = {str(owner): made(owner, self.step) for owner in self.owners}


def dies_keeping(self: ShardKeeper, *arguments: Any) -> None:
    mark, died = FOLDER / "kept", FOLDER / "died-keeping"
    if hvd.rank() == 3 and not died.exists():
        while not mark.exists():
            time.sleep(0.01)
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    commit(self, *arguments)
    if hvd.rank() == 1:
        mark.touch()


commit = ShardKeeper.commit
if "DIES_KEEPING" in os.environ:
    ShardKeeper.commit = dies_keeping  # type: ignore[method-assign]
hvd.init()
state = Sharded(step=0)


@elastic.run
def train(state: Sharded) -> None:
    if state.step == 0:
        state.owners = (hvd.rank(),)
    while state.step < STEPS or hvd.size() < SIZE:
        state.step += 1
        hvd.allreduce(np.ones(3), name="gradient")
        dying = [rank for step, rank in KILLS if step == state.step]
        marks = {rank: FOLDER / f"killed-{state.step}-{rank}" for rank in dying}
        if hvd.rank() in marks and not marks[hvd.rank()].exists():
            marks[hvd.rank()].touch()
            while not all(mark.exists() for mark in marks.values()):
                time.sleep(0.01)  # the first to die must not keep the other one from this step
            os.kill(os.getpid(), signal.SIGKILL)
        state.update()
        state.commit()
        if os.environ.get("PAUSE_AT") == str(state.step):
            print("pauses", flush=True)
            os.read(os.pipe()[0], 1)
        if hvd.size() < SIZE:
            time.sleep(0.02)  # a replacement is starting


train(state)
(FOLDER / f"end-{hvd.rank()}").write_text(json.dumps([state.step, state.owners]))
hvd.barrier()
