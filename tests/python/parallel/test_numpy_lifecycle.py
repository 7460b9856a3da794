"""Repeated init and shutdown, static process sets, jobs of some of the ranks."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import horoscale.numpy as hvd


@pytest.fixture(autouse=True)
def job_again() -> Iterator[None]:
    """Leave the session's job before each test, and join it again afterwards."""
    hvd.barrier()  # all ranks have left the previous test
    hvd.shutdown()
    yield
    hvd.shutdown()
    hvd.init(process_sets="dynamic")


def place() -> tuple[int, int]:
    """Rank and size outside of any job, as the launcher defines them."""
    (launcher,) = (
        name
        for name in ("HOROSCALE", "OMPI_COMM_WORLD", "PMI")
        if f"{name}_SIZE" in os.environ and f"{name}_RANK" in os.environ
    )
    return int(os.environ[f"{launcher}_RANK"]), int(os.environ[f"{launcher}_SIZE"])


def leave_together() -> None:
    """End a job, after all ranks have finished using it."""
    hvd.barrier()
    hvd.shutdown()


@pytest.mark.conformance
def test_again_and_again() -> None:
    for i in range(5):
        hvd.init()
        assert hvd.is_initialized()
        assert hvd.allreduce(np.int64(i), op=hvd.Sum, name="same name") == i * hvd.size()
        leave_together()
        assert not hvd.is_initialized()


def test_shutdown_while_threads_wait() -> None:
    if place() == (0, 1):
        pytest.skip("needs several ranks")
    for _ in range(10):
        hvd.init()
        names = [f"of {hvd.rank()} alone {i}" for i in range(4)]
        handles = [hvd.allreduce_async(np.ones(3), name=name) for name in names]
        hvd.barrier()  # no rank leaves before all have started
        begun = threading.Barrier(5)
        ends: list[BaseException] = []

        def wait(handle: object, begun: threading.Barrier, ends: list[BaseException]) -> None:
            begun.wait(60)
            try:
                hvd.synchronize(handle)
            except hvd.HorovodInternalError as error:
                ends.append(error)

        threads = [threading.Thread(target=wait, args=(one, begun, ends)) for one in handles]
        for thread in threads:
            thread.start()
        begun.wait(60)
        hvd.shutdown()
        for thread in threads:
            thread.join(60)
        assert len(ends) == 4


@pytest.mark.conformance
def test_static_process_sets() -> None:
    _, world = place()
    mine = hvd.ProcessSet([0])
    last = hvd.ProcessSet([world - 1]) if world > 1 else None
    hvd.init(process_sets=[one for one in (mine, last) if one is not None and world > 1])
    if world > 1:
        assert mine.process_set_id == 1
        assert last is not None
        assert last.process_set_id == 2
        for process_set in (mine, last):
            if process_set.included():
                assert hvd.allreduce(np.ones(1), op=hvd.Sum, process_set=process_set)[0] == 1
    with pytest.raises(ValueError, match="dynamic"):
        hvd.add_process_set([0])
    with pytest.raises(ValueError, match="dynamic"):
        hvd.remove_process_set(mine)
    leave_together()
    assert mine.process_set_id is None
    assert hvd.global_process_set.ranks is None


def test_each_rank_names_another_set_at_the_same_place() -> None:
    """As with MPI's Split: all sets that any rank passed are registered, in one order."""
    me, world = place()
    if world == 1:
        pytest.skip("needs several ranks")
    own = hvd.ProcessSet(list(range(me % 2, world, 2)))
    hvd.init(process_sets=[own])
    expected = {0: list(range(world)), 1: list(range(0, world, 2)), 2: list(range(1, world, 2))}
    assert hvd.get_process_set_ids_and_ranks() == expected
    assert own.process_set_id == 1 + me % 2
    total = hvd.allreduce(np.int64(me), op=hvd.Sum, process_set=own)
    assert total == sum(range(me % 2, world, 2))
    leave_together()


def test_what_one_rank_names_wrongly_is_told_to_all() -> None:
    me, world = place()
    for wrong, message in (
        ([world], "ranks must be between 0"),
        (list(range(world)), "already exists"),
    ):
        own = [hvd.ProcessSet(wrong)] if me == world - 1 else []
        with pytest.raises(ValueError, match=f"rank {world - 1}.*{message}"):
            hvd.init(process_sets=own)
        assert not hvd.is_initialized()
    hvd.init()
    leave_together()


def test_dynamic_on_one_rank_only() -> None:
    if place() == (0, 1):
        pytest.skip("needs several ranks")
    with pytest.raises(ValueError, match=r"ranks \[0\] only"):
        hvd.init(process_sets="dynamic" if place()[0] == 0 else None)


def test_a_second_init_does_nothing() -> None:
    hvd.init()
    hvd.init()
    hvd.init(process_sets="dynamic")
    with pytest.raises(ValueError, match="already called"):
        hvd.init(process_sets=[hvd.ProcessSet([0])])
    leave_together()


def test_job_of_some_ranks() -> None:
    me, world = place()
    ranks = list(range(world))[::-1][: max(1, world - 1)]  # all but rank 0, in descending order
    if me in ranks:
        hvd.init(ranks)
        assert hvd.size() == len(ranks)
        assert hvd.rank() == ranks.index(me)
        assert hvd.allgather_object(me) == ranks
        leave_together()
    else:
        with pytest.raises(ValueError, match="not one of them"):
            hvd.init(ranks)
    for wrong in ([0, 0], [world], [-1]):
        with pytest.raises(ValueError, match="distinct"):
            hvd.init(wrong)


def test_timeline(tmp_path: Path) -> None:
    hvd.init()
    path = tmp_path / "timeline.json"
    hvd.start_timeline(str(path))
    hvd.allreduce(np.ones(10), name="in the timeline")
    hvd.stop_timeline()
    written = path if hvd.rank() == 0 else path.with_name(f"timeline.json.rank{hvd.rank()}")
    assert "in the timeline" in written.read_text()
    json.loads(written.read_text())
    leave_together()


def test_operations_of_several_threads() -> None:
    hvd.init()
    failures: list[BaseException] = []

    def run(thread: int) -> None:
        try:
            for i in range(50):
                result = hvd.allreduce(np.full(100, i), op=hvd.Sum, name=f"thread {thread}")
                assert (result == i * hvd.size()).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
        assert not thread.is_alive()
    assert not failures
    leave_together()


def test_shutdown_ends_what_is_pending() -> None:
    hvd.init()
    handle = None
    if hvd.rank() == 0 and hvd.size() > 1:
        handle = hvd.allreduce_async(np.ones(3), name="the others never come")
    hvd.barrier()
    hvd.shutdown()
    if handle is not None:
        with pytest.raises(hvd.HorovodInternalError):
            hvd.synchronize(handle)
    with pytest.raises(ValueError, match=r"hvd\.init"):
        hvd.allreduce(np.ones(3))
