"""hvd.metrics(): late ranks, as counted by the set's lowest rank."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from support.process_sets import SECONDS, registered

import horoscale.numpy as hvd

pytestmark = [pytest.mark.usefixtures("need_ranks"), pytest.mark.conformance]

Late = dict[str, dict[str, float]]


def late_ranks(process_set: hvd.ProcessSet) -> Late:
    of_set: Late = hvd.metrics()["process_sets"][str(process_set.process_set_id)]["late_ranks"]
    return of_set


@contextmanager
def pair() -> Iterator[hvd.ProcessSet]:
    """The set of the first and the last rank."""
    if hvd.size() == 2:
        yield hvd.global_process_set
        return
    with registered([0, hvd.size() - 1]) as made:
        yield made


def held_back(process_set: hvd.ProcessSet, name: str) -> None:
    """An operation that the last rank calls after the first one's call has been processed."""
    own, token = np.ones(1000), np.zeros(1)
    first, last = process_set.ranks
    if hvd.rank() == last:
        hvd.recv(token, first)
        hvd.allreduce(own, name=name, process_set=process_set)
        return
    handle = hvd.allreduce_async(own, name=name, process_set=process_set)
    deadline = time.monotonic() + SECONDS
    while not hvd.metrics()["progress"][str(process_set.process_set_id)]["pending"]:
        assert time.monotonic() < deadline
    hvd.metrics()  # its report has been sent by then
    hvd.send(token, last)
    hvd.synchronize(handle)


def test_a_rank_that_is_held_back_is_late(name: str) -> None:
    with pair() as both:
        if not both.included():
            return
        last = str(both.ranks[-1])
        for _ in range(3):
            before = late_ranks(both)
            held_back(both, name)
            after = late_ranks(both)
            if hvd.rank() != 0:
                assert after == {}  # only rank 0 counts
                continue
            was = before.pop(last, {"operations": 0, "seconds": 0.0})
            now = after.pop(last)
            assert now["operations"] == was["operations"] + 1
            assert now["seconds"] > was["seconds"]
            assert after == before


def test_each_set_counts_its_own(name: str) -> None:
    if hvd.size() == 2:
        pytest.skip("needs 3 ranks")
    with pair() as both:
        before = late_ranks(hvd.global_process_set)
        if both.included():
            held_back(both, name)
            assert bool(late_ranks(both)) == (hvd.rank() == 0)
        assert late_ranks(hvd.global_process_set) == before
