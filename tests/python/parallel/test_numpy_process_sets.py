"""Process sets in a job that was started with process_sets="dynamic"."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from support.process_sets import registered, some_sets

import horoscale.numpy as hvd
from horoscale.common.arguments import scattered_rows

pytestmark = pytest.mark.usefixtures("need_ranks")


@pytest.mark.conformance
def test_every_operation_inside_each_set(name: str) -> None:
    for ranks in some_sets():
        with registered(ranks) as process_set:
            assert process_set.ranks == ranks
            assert process_set.included() == (hvd.rank() in ranks)
            assert hvd.size(process_set) == len(ranks)
            if process_set.included():
                assert hvd.rank(process_set) == ranks.index(hvd.rank())
                every_operation(process_set, name)


def every_operation(process_set: hvd.ProcessSet, name: str) -> None:
    ranks, me = process_set.ranks, hvd.rank()
    assert ranks is not None
    own = np.full((4, 2), me, np.float32)
    arguments = {"process_set": process_set, "name": name}
    total = hvd.allreduce(own, op=hvd.Sum, **arguments)
    np.testing.assert_array_equal(total, np.full((4, 2), sum(ranks)))
    mean = hvd.allreduce(own, **arguments)
    np.testing.assert_allclose(mean, np.full((4, 2), sum(ranks) / len(ranks)), rtol=1e-6)
    gathered = hvd.allgather(own[:1], **arguments)
    np.testing.assert_array_equal(gathered[:, 0], ranks)
    for root in ranks:  # a global rank, even within a set
        np.testing.assert_array_equal(
            hvd.broadcast(own, root_rank=root, **arguments), np.full((4, 2), root)
        )
    rows = np.full((len(ranks), 2), me, np.float32)
    received = hvd.alltoall(rows, **arguments)
    np.testing.assert_array_equal(received[:, 0], ranks)
    share = hvd.reducescatter(own, op=hvd.Sum, **arguments)
    assert share.shape == (scattered_rows(4, process_set), 2)
    assert (share == sum(ranks)).all()
    assert hvd.broadcast_object(me, ranks[-1], name, process_set) == ranks[-1]
    assert hvd.allgather_object(str(me), name, process_set) == [str(rank) for rank in ranks]
    hvd.barrier(process_set)


@pytest.mark.conformance
def test_ids_and_ranks(name: str) -> None:
    everyone = list(range(hvd.size()))
    assert hvd.get_process_set_ids_and_ranks() == {0: everyone}
    with registered([0]) as one, registered(everyone[1:]) as two:
        assert one.process_set_id != two.process_set_id
        assert hvd.get_process_set_ids_and_ranks() == {
            0: everyone,
            one.process_set_id: [0],
            two.process_set_id: everyone[1:],
        }
    assert hvd.get_process_set_ids_and_ranks() == {0: everyone}


def test_freed_ids_are_used_again_oldest_first() -> None:
    # IDs that were freed before are used up first.
    sets = [hvd.add_process_set(ranks) for ranks in some_sets()]
    ids = [process_set.process_set_id for process_set in sets]
    for process_set in reversed(sets):
        assert hvd.remove_process_set(process_set)
    again = [hvd.add_process_set(process_set) for process_set in sets]
    pool = [process_set.process_set_id for process_set in again]
    for process_set in again:
        hvd.remove_process_set(process_set)
    assert len(set(pool)) == len(ids)


def test_sets_run_side_by_side(name: str) -> None:
    """A rank that is late in one set does not delay another set."""
    everyone = list(range(hvd.size()))
    with registered(everyone[1:]) as late, registered([0]) as alone:
        handle = None
        if hvd.rank() == hvd.size() - 1:
            hvd.barrier()
            handle = hvd.allreduce_async(np.ones(5), op=hvd.Sum, name=name, process_set=late)
        else:
            if late.included():
                handle = hvd.allreduce_async(np.ones(5), op=hvd.Sum, name=name, process_set=late)
            if alone.included():
                result = hvd.allreduce(np.ones(3), op=hvd.Sum, name=name, process_set=alone)
                np.testing.assert_array_equal(result, np.ones(3))
            hvd.barrier()
        if handle is not None:
            np.testing.assert_array_equal(hvd.synchronize(handle), np.full(5, hvd.size() - 1.0))


def test_the_same_name_in_two_sets(name: str) -> None:
    with registered([0]) as process_set:
        if process_set.included():
            handle = hvd.allreduce_async(np.ones(2), op=hvd.Sum, name=name, process_set=process_set)
        total = hvd.allreduce(np.ones(2), op=hvd.Sum, name=name)
        assert total[0] == hvd.size()
        if process_set.included():
            assert hvd.synchronize(handle)[0] == 1


def test_a_rank_outside_raises_at_once(name: str) -> None:
    with registered([0]) as process_set:
        if hvd.rank() == 0:
            return
        calls = (
            lambda: hvd.allreduce(np.ones(2), process_set=process_set),
            lambda: hvd.allgather(np.ones(2), process_set=process_set),
            lambda: hvd.broadcast(np.ones(2), 0, process_set=process_set),
            lambda: hvd.alltoall(np.ones(2), process_set=process_set),
            lambda: hvd.reducescatter(np.ones(2), process_set=process_set),
            lambda: hvd.barrier(process_set),
            lambda: hvd.broadcast_object(1, 0, process_set=process_set),
            lambda: hvd.rank(process_set),
        )
        for call in calls:
            with pytest.raises(ValueError, match=f"rank {hvd.rank()} does not belong"):
                call()


def test_root_outside_the_set(name: str) -> None:
    with registered([0]) as process_set:
        if process_set.included():
            with pytest.raises(ValueError, match="root_rank=1"):
                hvd.broadcast(np.ones(2), root_rank=1, name=name, process_set=process_set)


@pytest.mark.conformance
def test_wrong_ranks_and_sets_that_exist() -> None:
    everyone = list(range(hvd.size()))
    with pytest.raises(ValueError, match="twice"):
        hvd.add_process_set([0, 0])
    with pytest.raises(ValueError, match="ranks must be between 0"):
        hvd.add_process_set([0, hvd.size()])
    with pytest.raises(ValueError, match="ranks must be between 0"):
        hvd.add_process_set([-1])
    with pytest.raises(ValueError, match="already exists"):
        hvd.add_process_set(everyone[::-1])
    with registered([0]) as process_set:
        with pytest.raises(ValueError, match="already exists"):
            hvd.add_process_set([0])
        for again in (process_set, hvd.global_process_set):
            with pytest.raises(ValueError, match="already exists"):
                hvd.add_process_set(again)
        assert process_set.included() == (hvd.rank() == 0)


def test_removal() -> None:
    process_set = hvd.add_process_set([0])
    assert hvd.remove_process_set(process_set) is True
    assert process_set.process_set_id is None
    assert process_set.size() is None
    assert process_set.rank() is None
    assert process_set.included() == (hvd.rank() == 0)
    assert hvd.remove_process_set(process_set) is False
    assert hvd.remove_process_set(hvd.ProcessSet([0])) is False
    assert hvd.remove_process_set(hvd.global_process_set) is False
    with pytest.raises(ValueError, match="not registered"):
        hvd.allreduce(np.ones(1), process_set=process_set)


def test_ranks_that_contradict_each_other() -> None:
    ranks = [0] if hvd.rank() == 0 else [1]
    with pytest.raises(hvd.MismatchError):
        hvd.add_process_set(ranks)
    with registered([1]) as process_set:
        change = partial(hvd.add_process_set, [0])
        if hvd.rank() == 0:
            change = partial(hvd.remove_process_set, process_set)
        with pytest.raises(hvd.MismatchError):
            change()
        assert hvd.get_process_set_ids_and_ranks()[process_set.process_set_id] == [1]


def test_who_removes_nothing_contradicts_the_others() -> None:
    with registered([1]) as process_set:
        mine = hvd.ProcessSet([1]) if hvd.rank() == 0 else process_set
        with pytest.raises(hvd.MismatchError, match=r"rank 0: no registered process set"):
            hvd.remove_process_set(mine)
        assert hvd.get_process_set_ids_and_ranks()[process_set.process_set_id] == [1]


def test_many_additions_and_removals() -> None:
    for _ in range(100):
        with registered([0]), registered([1]):
            pass
    assert list(hvd.get_process_set_ids_and_ranks()) == [0]
