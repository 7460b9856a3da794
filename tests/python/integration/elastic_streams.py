"""A job that reads shards in order while ranks die: elastic_streams.py FOLDER STEP RANK.

The first process with RANK at STEP kills itself after reading an item. The next commit contains
each item that a rank has read; the final state is written to a file.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import horoscale.numpy as hvd
from horoscale import elastic

FOLDER, KILL_STEP, KILL_RANK = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
LENGTHS = [7, 0, 12, 3, 9]


class Lines:
    """Stands for the lines of a file, which are never skipped."""

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.line = 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        while self.line < LENGTHS[self.shard]:
            self.line += 1
            yield self.shard, self.line - 1

    def state_dict(self) -> dict[str, Any]:
        return {"line": self.line}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.line = state_dict["line"]


hvd.init()
stream = elastic.ShardedStream(range(len(LENGTHS)), Lines)
state = elastic.ObjectState(stream=stream, step=0, seen=[], sizes=[])


@elastic.run
def train(state: elastic.ObjectState) -> None:
    state.sizes = [*state.sizes, hvd.size()]
    while True:
        for item in stream:
            mark = FOLDER / "killed"
            if (state.step, hvd.rank()) == (KILL_STEP, KILL_RANK) and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            items = hvd.allgather_object(item)
            assert stream.active == sum(one is not None for one in items) > 0
            state.seen = [*state.seen, *([stream.epoch, *one] for one in items if one is not None)]
            state.step += 1
            if hvd.size() < 3:
                time.sleep(0.05)  # a replacement is starting
            if state.step % 3:
                state.commit()
            else:
                state.check_host_updates()
        stream.next_epoch()
        state.commit()
        if stream.epoch >= 2 and hvd.size() == 3:
            return


train(state)
done = {"seen": state.seen, "epochs": stream.epoch, "sizes": state.sizes}
(FOLDER / f"done.{hvd.rank()}").write_text(json.dumps(done))
