"""A rank's side of a benchmark: it carries out what benchmarks/ranks.py orders.

It needs nothing but Python, so that it runs in the environments of the peers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.connection import Client


def serve(address: str, measure: Callable[..., list[float]]) -> None:
    """In a rank: carry out orders until the benchmark has no more.

    `measure` gets what Job.measure() got and returns the seconds of each call.
    """
    with Client(address, "AF_UNIX") as benchmark:
        while (order := benchmark.recv()) is not None:  # waits without a spin while others measure
            benchmark.send(measure(*order))


def times(call: Callable[[], object], count: int, warm_up: int = 0) -> list[float]:
    """The seconds of each of `count` calls, after some that don't count."""
    for _ in range(warm_up):
        call()
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds
