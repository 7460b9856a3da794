"""Jobs and process sets from mpi4py's communicators."""

from __future__ import annotations

import subprocess
import sys

import pytest
from conftest import Mpi

pytestmark = pytest.mark.timeout(200)

BEGIN = """
import numpy as np
from mpi4py import MPI
import horoscale.numpy as hvd
world = MPI.COMM_WORLD
def total(value, **options):
    return int(hvd.allreduce(np.array([value]), op=hvd.Sum, **options)[0])
def refused(call, error, text):
    try:
        call()
    except error as raised:
        assert text in str(raised), raised
    else:
        raise AssertionError("nothing was raised")
"""


def run(mpi: Mpi, script: str) -> None:
    mpi.run_script(4, BEGIN + script)


def test_split_gives_each_rank_its_set(mpi: Mpi) -> None:
    run(
        mpi,
        """
node = hvd.ProcessSet(world.Split(color=world.rank % 2, key=-world.rank))
assert node.ranks is None and node.included() is None
hvd.init(world, process_sets=[node])
assert node.ranks == [world.rank % 2, world.rank % 2 + 2]
assert node.included() and hvd.size(node) == 2 and node.mpi_comm is not None
assert hvd.get_process_set_ids_and_ranks() == {0: [0, 1, 2, 3], 1: [0, 2], 2: [1, 3]}
assert total(world.rank, process_set=node) == 2 + 2 * (world.rank % 2)
refused(lambda: hvd.add_process_set(world), ValueError, "dynamic")
hvd.shutdown()
assert node.process_set_id is None
hvd.init(process_sets=[node])  # the same objects serve the next job
assert total(1, process_set=node) == 2
""",
    )


def test_a_part_of_the_world_is_a_job(mpi: Mpi) -> None:
    run(
        mpi,
        """
half = world.Split(world.rank // 2, key=-world.rank)
hvd.init(half)
assert (hvd.rank(), hvd.size()) == (half.rank, 2)
assert total(world.rank) == (1 if world.rank < 2 else 5)
hvd.shutdown()
hvd.init([half, half.Split(half.rank)])  # the job, then sets in it
assert hvd.get_process_set_ids_and_ranks() == {0: [0, 1], 1: [0], 2: [1]}
hvd.shutdown()
assert half.allreduce(1) == 2
""",
    )


def test_a_list_of_ranks_is_a_job(mpi: Mpi) -> None:
    run(
        mpi,
        """
if world.rank in (1, 3):
    mine = hvd.ProcessSet(MPI.COMM_SELF)
    hvd.init([3, 1], process_sets=[mine])
    assert (hvd.rank(), hvd.size()) == (0 if world.rank == 3 else 1, 2)
    assert mine.ranks == [hvd.rank()]
    assert total(world.rank) == 4
    hvd.shutdown()
else:
    refused(lambda: hvd.init([3, 1]), ValueError, "not one of them")
refused(lambda: hvd.init([0, 4]), ValueError, "from 0 to 3")
""",
    )


def test_what_is_no_group_of_ranks_is_refused(mpi: Mpi) -> None:
    run(
        mpi,
        """
half = world.Split(world.rank // 2)
inter = half.Create_intercomm(0, world, 2 - 2 * (world.rank // 2))
for make in (hvd.ProcessSet, hvd.init):
    refused(lambda: make(MPI.COMM_NULL), ValueError, "COMM_NULL")
    refused(lambda: make(inter), ValueError, "intercommunicator")
outside = hvd.ProcessSet(world)
refused(lambda: hvd.init(half, process_sets=[outside]), ValueError, "no part in the job")
hvd.init(world, process_sets="dynamic")
for comm in (half, hvd.ProcessSet(half)):
    refused(lambda: hvd.add_process_set(comm), NotImplementedError, "ranks")
assert total(1) == 4
""",
    )


def test_under_horoscalerun_communicators_say_what_to_use(mpi: Mpi) -> None:
    script = (
        BEGIN
        + """
everyone = hvd.ProcessSet(world)
for arguments in ({"process_sets": [everyone]}, {"comm": world}):
    refused(lambda: hvd.init(**arguments), ValueError, "mpirun or horoscalerun --mpi")
hvd.init()
assert hvd.size() == 2 and not hvd.mpi_enabled()
"""
    )
    ended = subprocess.run(
        [sys.executable, "-m", "horoscale.runner", "-np", "2", mpi.python, "-c", script],
        env=mpi.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
