"""Objects, barrier and join."""

from __future__ import annotations

import time

import numpy as np
import pytest

import horoscale.numpy as hvd


@pytest.mark.conformance
def test_broadcast_object(name: str) -> None:
    for root in range(hvd.size()):
        for i, obj in enumerate(({"root": root, "list": [1, "zwei"]}, None, b"x" * 1_000_000)):
            own = obj if hvd.rank() == root else "not this one"
            assert hvd.broadcast_object(own, root, name=f"{name}.{i}") == obj


def test_broadcast_object_that_only_cloudpickle_can_send() -> None:
    factor = 3
    function = hvd.broadcast_object((lambda x: factor * x) if hvd.rank() == 0 else None)
    assert function(2) == 6


@pytest.mark.conformance
def test_allgather_object(name: str) -> None:
    own = {"rank": hvd.rank(), "text": "ä" * hvd.rank() * 1000}
    everyone = hvd.allgather_object(own, name=name)
    assert [one["rank"] for one in everyone] == list(range(hvd.size()))
    assert [len(one["text"]) for one in everyone] == [1000 * rank for rank in range(hvd.size())]


@pytest.mark.usefixtures("need_ranks")
def test_barrier_waits_for_the_last() -> None:
    entered = time.monotonic()
    if hvd.rank() == 0:
        time.sleep(0.2)  # the others must not continue before it is over
        entered = time.monotonic()
    hvd.barrier()
    left = time.monotonic()
    last_entry = max(hvd.allgather_object(entered))
    assert left >= last_entry  # one clock for all processes of a host


@pytest.mark.conformance
def test_join_returns_the_same_rank_everywhere(name: str) -> None:
    last = hvd.join()
    assert 0 <= last < hvd.size()
    assert set(hvd.allgather_object(last, name=name)) == {last}


@pytest.mark.usefixtures("need_ranks")
@pytest.mark.parametrize("in_place", [False, True], ids=["new", "in_place"])
def test_joined_ranks_are_absent(in_place: bool, name: str) -> None:
    """Rank r has r + 1 batches: step s has the ranks from s on."""
    allreduce = hvd.allreduce_ if in_place else hvd.allreduce
    for step in range(hvd.rank() + 1):
        there = range(step, hvd.size())
        for op, expected in (
            (hvd.Sum, sum(rank + 2 for rank in there)),
            (hvd.Average, sum(rank + 2 for rank in there) / hvd.size()),
            (hvd.Min, min(rank + 2 for rank in there)),
            (hvd.Max, max(rank + 2 for rank in there)),
            (hvd.Product, np.prod([rank + 2.0 for rank in there])),
        ):
            own = np.full(1000, hvd.rank() + 2, np.float64)
            result = allreduce(own, op=op, name=f"{name}.{step}.{op.name}")
            np.testing.assert_allclose(result, np.full(1000, expected), rtol=1e-12)
    assert hvd.join() == hvd.size() - 1


@pytest.mark.usefixtures("need_ranks")
def test_what_a_joined_rank_makes_impossible(name: str) -> None:
    if hvd.rank() != 0:
        own = np.ones((hvd.size(), 1))
        # Rank 0 may not have joined yet: an operation waits until it has joined or participates.
        for call in (
            lambda: hvd.allgather(own, name=f"{name}.gather"),
            lambda: hvd.alltoall(own, name=f"{name}.all"),
            lambda: hvd.reducescatter(own, name=f"{name}.scatter"),
            lambda: hvd.broadcast(own, root_rank=0, name=f"{name}.root"),
        ):
            with pytest.raises(
                hvd.HorovodInternalError, match="rank 0, which called join"
            ) as error:
                call()
            assert not isinstance(error.value, ValueError)
        result = hvd.broadcast(own * hvd.rank(), root_rank=1, name=f"{name}.other_root")
        np.testing.assert_array_equal(result, own)
    hvd.join()
