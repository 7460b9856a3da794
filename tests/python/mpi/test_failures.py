"""Ranks that fail while MPI's own collectives run: others get errors, or the job ends."""

from __future__ import annotations

import time

import pytest
from conftest import Mpi

pytestmark = pytest.mark.timeout(300)

START = """
import os, signal, sys
import numpy as np
import horoscale.numpy as hvd
hvd.init()
rank, size = hvd.rank(), hvd.size()
values = np.ones(1 << 20, np.float32)

def begun():
    return hvd.metrics()["process_sets"]["0"]["mpi_buckets"]

def work(turns):  # until somebody fails: then the others are in the middle of it
    for turn in range(turns):
        hvd.allreduce(values, op=hvd.Sum, name=f"gradient.{turn}")
"""


def test_survivors_name_who_left(mpi: Mpi) -> None:
    """Shutdown with a pending MPI operation; the process lives on, so that mpirun does, too."""
    script = (
        START
        + """
from mpi4py import MPI
world = MPI.COMM_WORLD
if rank == 1:
    work(3)
    handle = hvd.allreduce_async(values, op=hvd.Sum, name="gradient.3")
    while begun() < 4:
        pass
    hvd.shutdown()
    try:
        hvd.synchronize(handle)
    except hvd.HorovodInternalError as error:
        assert "shut down" in str(error), error
else:
    try:
        work(10_000)
        raise AssertionError("nothing failed")
    except hvd.RankFailedError as error:
        assert error.ranks == (1,) and error.process_set == 0, error
        assert error.tensor.startswith("gradient."), error
        assert "rank 1" in str(error) and error.tensor in str(error), error
sys.stdout.write("this rank has seen it\\n")
sys.stdout.flush()
world.Barrier()
"""
    )
    began = time.monotonic()
    ended = mpi.run(3, "-c", script, HOROSCALE_BACKEND="mpi")
    assert ended.stdout.count("this rank has seen it") == 3, ended.stdout + ended.stderr
    assert time.monotonic() - began < 50


def test_a_rank_that_is_killed_ends_the_job(mpi: Mpi) -> None:
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    script = START + f"work(3)\nif rank == 1: {kill}\nwork(10_000)\n"
    ended = mpi.run(3, "-c", script, HOROSCALE_BACKEND="mpi")
    assert ended.returncode != 0


def test_contradictions_are_told_to_all_and_the_job_goes_on(mpi: Mpi) -> None:
    script = (
        START
        + """
def refused(said, call):
    before = hvd.allreduce_async(values, op=hvd.Sum, name="before")  # MPI is at work on it
    try:
        call()
        raise AssertionError("nothing was refused")
    except hvd.MismatchError as error:
        assert all(one in str(error) for one in said), error
    assert hvd.synchronize(before)[0] == size

odd = rank == 1
refused(('"shape"', "float32[3]", "rank 1: float32[4]"),
        lambda: hvd.allreduce(np.ones(3 + odd, np.float32), name="shape"))
refused(('"type"', "int32", "rank 1: float64"),
        lambda: hvd.allreduce(np.ones(3, np.float64 if odd else np.int32), name="type"))
refused(('"op"', "Sum", "rank 1: Max"),
        lambda: hvd.allreduce(np.ones(3, np.int32), op=hvd.Max if odd else hvd.Sum, name="op"))
refused(('"root"', "root 0", "rank 1: root 1"),
        lambda: hvd.broadcast(np.ones(3), int(odd), name="root"))
assert begun() == 4
hvd.allreduce(values, name="shape")
"""
    )
    mpi.run_script(3, script, HOROSCALE_BACKEND="mpi")
