"""One rank of a job in which a rank is killed: endless collectives, and how they fail.

    python kill_rank.py SEED VICTIM busy|large|absent|forked

It prints "ready" when the job runs and, when its operations fail, a JSON object: when the first one
raised (monotonic clock), the ranks that each error named, and the results of later operations. The
victim participates normally (busy, or large: in operations that read ranks' memory directly), has a
forked child that keeps its descriptors open (forked; it prints the child's PID), or does nothing
(absent), so that the others wait for it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.random import Generator
from random_operations import Operation, draw, draw_large_movement

import horoscale.numpy as hvd
from horoscale.common.exceptions import RankFailedError

SECONDS_TO_LIVE = 60
POOL = 60  # operations drawn in advance, so that ranks communicate instead of computing


class Outcomes:
    """The ranks that failed calls named, and when the first call failed."""

    def __init__(self) -> None:
        self.raised_at: float | None = None
        self.named: list[list[int]] = []

    def attempt(self, call: Callable[[], Any]) -> Any:
        """Make a call; record its RankFailedError, if it raises one."""
        try:
            return call()
        except RankFailedError as error:
            self.raised_at = self.raised_at or time.monotonic()
            if not all(str(rank) in str(error) for rank in error.ranks):
                raise AssertionError("the message does not name the ranks") from error
            self.named.append(list(error.ranks))
            return None


def run_until_failure(pool: Sequence[Operation], common: Generator, own: Generator) -> Outcomes:
    """Run batches of operations until one fails; return how that batch ended."""
    outcomes = Outcomes()
    while outcomes.raised_at is None:
        batch = common.choice(POOL, common.integers(1, 9), replace=False)
        handles = [
            outcomes.attempt(partial(pool[k].start, hvd.rank(), f"pool.{k}"))
            for k in own.permutation(batch)
        ]
        for handle in handles:
            if handle is not None:
                outcomes.attempt(partial(hvd.synchronize, handle))
    return outcomes


def begin_later_operations() -> Outcomes:
    """Try one operation of each kind of call after the failure."""
    outcomes = Outcomes()
    for _ in range(2):
        outcomes.attempt(lambda: hvd.allreduce(np.ones(3), name="later"))
        outcomes.attempt(lambda: hvd.synchronize(hvd.allgather_async(np.ones(3))))
        outcomes.attempt(hvd.barrier)
    return outcomes


def be_victim(mode: str) -> None:
    """The victim's action besides, or instead of, participating."""
    if mode == "absent":
        print("ready", flush=True)
        signal.pause()
    elif mode == "forked":
        child = os.fork()
        if child == 0:
            signal.pause()
        print(child, flush=True)


def main() -> None:
    seed, victim, mode = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    faulthandler.dump_traceback_later(SECONDS_TO_LIVE, exit=True)
    hvd.init()
    common = np.random.default_rng(seed)
    own = np.random.default_rng([seed, hvd.rank()])
    kind = draw_large_movement if mode == "large" else draw
    pool = [kind(common, hvd.size()) for _ in range(POOL)]
    hvd.barrier()
    if hvd.rank() == victim:
        be_victim(mode)
    print("ready", flush=True)
    pending = run_until_failure(pool, common, own)
    later = begin_later_operations()
    report = {"raised_at": pending.raised_at, "pending": pending.named, "later": later.named}
    print(json.dumps(report), flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
