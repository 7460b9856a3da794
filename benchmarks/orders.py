"""A rank's side of a benchmark: it executes orders from benchmarks/ranks.py.

It needs only Python, so it runs in the environments of the peers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.connection import Client


def serve(address: str, measure: Callable[..., list[float]]) -> None:
    """In a rank: execute orders until the benchmark ends.

    `measure` receives the arguments of Job.measure() and returns the seconds of each call.
    """
    with Client(address, "AF_UNIX") as benchmark:
        while (
            order := benchmark.recv()
        ) is not None:  # blocks without spinning while others measure
            benchmark.send(measure(*order))


def times(call: Callable[[], object], count: int, warm_up: int = 0) -> list[float]:
    """Return the seconds of each of `count` calls, after some warm-up calls."""
    for _ in range(warm_up):
        call()
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds
