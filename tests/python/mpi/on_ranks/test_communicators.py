"""Jobs and process sets from mpi4py's communicators, and its traffic next to ours.

mpirun -np 4 python -m pytest --with-mpi tests/python/mpi/on_ranks; test_on_ranks.py does so.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import horoscale.numpy as hvd

pytestmark = pytest.mark.mpi(min_size=4)
WORLD = MPI.COMM_WORLD


@pytest.fixture(autouse=True)
def shut_down() -> Iterator[None]:
    yield
    hvd.shutdown()
    WORLD.Barrier()  # mpi4py works, and the next test begins with all ranks


def total(value: int, **options: Any) -> int:
    return int(hvd.allreduce(np.array([value]), op=hvd.Sum, **options)[0])


def test_split_gives_each_rank_its_set() -> None:
    node = hvd.ProcessSet(WORLD.Split(color=WORLD.rank % 2, key=-WORLD.rank))
    assert node.ranks is None
    assert node.included() is None
    hvd.init(WORLD, process_sets=[node])
    assert node.ranks == [WORLD.rank % 2, WORLD.rank % 2 + 2]
    assert node.included()
    assert hvd.size(node) == 2
    assert node.mpi_comm is not None
    assert hvd.get_process_set_ids_and_ranks() == {0: [0, 1, 2, 3], 1: [0, 2], 2: [1, 3]}
    assert total(WORLD.rank, process_set=node) == 2 + 2 * (WORLD.rank % 2)
    with pytest.raises(ValueError, match="dynamic"):
        hvd.add_process_set(WORLD)
    hvd.shutdown()
    assert node.process_set_id is None
    hvd.init(process_sets=[node])  # the same objects work in the next job
    assert total(1, process_set=node) == 2


def test_a_part_of_the_world_is_a_job() -> None:
    half = WORLD.Split(WORLD.rank // 2, key=-WORLD.rank)
    hvd.init(half)
    assert (hvd.rank(), hvd.size()) == (half.rank, 2)
    assert total(WORLD.rank) == (1 if WORLD.rank < 2 else 5)
    hvd.shutdown()
    assert half.allreduce(1) == 2


def test_a_list_of_communicators_is_a_job_and_its_sets() -> None:
    half = WORLD.Split(WORLD.rank // 2)
    hvd.init([half, half.Split(half.rank)])
    assert hvd.get_process_set_ids_and_ranks() == {0: [0, 1], 1: [0], 2: [1]}
    assert total(WORLD.rank) == (1 if WORLD.rank < 2 else 5)


def test_a_list_of_ranks_is_a_job() -> None:
    if WORLD.rank in (1, 3):
        mine = hvd.ProcessSet(MPI.COMM_SELF)
        hvd.init([3, 1], process_sets=[mine])
        assert (hvd.rank(), hvd.size()) == (0 if WORLD.rank == 3 else 1, 2)
        assert mine.ranks == [hvd.rank()]
        assert total(WORLD.rank) == 4
        hvd.shutdown()
    else:
        with pytest.raises(ValueError, match="not one of them"):
            hvd.init([3, 1])
    with pytest.raises(ValueError, match="from 0 to 3"):
        hvd.init([0, 4])


def test_what_is_no_group_of_ranks_is_refused() -> None:
    half = WORLD.Split(WORLD.rank // 2)
    inter = half.Create_intercomm(0, WORLD, 2 - 2 * (WORLD.rank // 2))
    for make in (hvd.ProcessSet, hvd.init):
        with pytest.raises(ValueError, match="COMM_NULL"):
            make(MPI.COMM_NULL)
        with pytest.raises(ValueError, match="intercommunicator"):
            make(inter)
    with pytest.raises(ValueError, match="no part in the job"):
        hvd.init(half, process_sets=[hvd.ProcessSet(WORLD)])
    hvd.init(WORLD, process_sets="dynamic")
    for comm in (half, hvd.ProcessSet(half)):
        with pytest.raises(NotImplementedError, match="ranks"):
            hvd.add_process_set(comm)
    assert total(1) == 4


def test_mpi4py_goes_on_while_we_work_and_after_shutdown() -> None:
    hvd.init(WORLD)
    wrong = []

    def theirs() -> None:
        for i in range(300):
            if WORLD.allreduce(i) != 4 * i:
                wrong.append(i)

    thread = threading.Thread(target=theirs)
    thread.start()
    for i in range(300):
        assert total(i) == 4 * i
    thread.join()
    assert not wrong
    hvd.shutdown()
    assert WORLD.allreduce(1) == 4
