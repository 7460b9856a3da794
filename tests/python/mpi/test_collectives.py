"""MPI's own collectives serve the process sets of a job whose data MPI carries."""

from __future__ import annotations

import os
from textwrap import dedent

import pytest
from conftest import Mpi

# Add, use, remove: MPI's context ids are few (2,048 in MPICH), so that a leak shows.
CYCLES = os.environ.get("HOROSCALE_TEST_CYCLES", "300")

START = """
import numpy as np
import horoscale.numpy as hvd
hvd.init(process_sets="dynamic")
rank, size = hvd.rank(), hvd.size()

def served(id=0):
    return hvd.metrics()["process_sets"][str(id)]["mpi_buckets"]

def values(of, dtype, count=1001):
    return (np.arange(count) % 7 + of + 1).astype(dtype)
"""

MATRIX = """
sets = [hvd.global_process_set, *map(hvd.add_process_set, ([0, 1, 2], [1, 3], [2]))]
# What MPI has exactly; the others are served by the native backend, with the same results.
by_mpi = {"uint8", "int8", "uint16", "int16", "int32", "int64", "float32", "float64"}
for of in sets:
    if not of.included():
        continue
    for dtype in (*sorted(by_mpi), "float16", "bool", "complex64"):
        ops = {hvd.Sum: np.add}
        if dtype not in ("bool", "complex64"):
            ops |= {hvd.Min: np.minimum, hvd.Max: np.maximum}
        for op, combine in ops.items():
            expected = values(of.ranks[0], dtype)
            for other in of.ranks[1:]:
                expected = combine(expected, values(other, dtype))
            before = served(of.process_set_id)
            got = hvd.allreduce(values(rank, dtype), op=op, process_set=of)
            assert got.dtype == expected.dtype and np.array_equal(got, expected), (of, dtype, op)
            floating = dtype in ("float32", "float64")
            exact = dtype in by_mpi and not (floating and op != hvd.Sum)
            assert served(of.process_set_id) - before == (exact and of.size() > 1), (of, dtype, op)
        if dtype not in ("bool", "complex64"):
            mine = values(rank, dtype, 21).reshape(7, 3)  # rows that don't divide evenly
            whole = sum(values(o, dtype, 21).astype("int64") for o in of.ranks).reshape(7, 3)
            before = served(of.process_set_id)
            part, empty, row = hvd.grouped_reducescatter(
                [mine, mine[:0], mine[:1]], op=hvd.Sum, process_set=of)
            at = of.rank()
            assert np.array_equal(part, np.array_split(whole, of.size())[at]), (of, dtype, part)
            assert len(empty) == 0 and len(row) == (at == 0), (of, dtype)
            assert np.array_equal(row, whole[: len(row)]), (of, dtype)
            assert (served(of.process_set_id) > before) == (dtype in by_mpi and of.size() > 1)
        root = of.ranks[-1]
        got = hvd.broadcast(values(rank, dtype), root, process_set=of)
        assert np.array_equal(got, values(root, dtype)), (of, dtype)
    mean = hvd.allreduce(np.array([-1 - rank, 7], np.int32), process_set=of)
    total = sum(-1 - other for other in of.ranks)
    assert mean.tolist() == [-(-total // of.size()), 7], (of, mean)
    scaled = hvd.allreduce(values(rank, "float32"), op=hvd.Sum, postscale_factor=0.5,
                           process_set=of)
    assert np.array_equal(scaled, sum(values(o, "float32") for o in of.ranks) / 2), of
    parts = hvd.grouped_allreduce([values(rank, "float32", n) for n in (1, 0, 50)], op=hvd.Sum,
                                  process_set=of)
    for part, count in zip(parts, (1, 0, 50)):
        assert np.array_equal(part, sum(values(o, "float32", count) for o in of.ranks)), of
nan = hvd.allreduce(np.array([np.nan if rank == 0 else 1.0]), op=hvd.Min)
assert np.isnan(nan[0])
"""


def test_every_type_and_set(mpi: Mpi) -> None:
    mpi.run_script(4, START + MATRIX, HOROSCALE_BACKEND="mpi")


def test_deterministic_sums_are_not_mpis(mpi: Mpi) -> None:
    script = START + "hvd.allreduce(values(rank, 'float32')); assert served() == 0"
    mpi.run_script(2, script, HOROSCALE_BACKEND="mpi", HOROSCALE_DETERMINISTIC="1")


def test_a_set_does_not_wait_for_a_rank_outside(mpi: Mpi) -> None:
    """The last rank makes no call while the others work in two sets that overlap."""
    script = """
    from mpi4py import MPI
    first, second = hvd.add_process_set([0, 1]), hvd.add_process_set([1, 2])
    if rank == size - 1:
        MPI.COMM_WORLD.recv(source=0)
    else:
        for of in (second, first):  # crossed with the order of registration
            if of.included():
                for turn in range(20):
                    got = hvd.allreduce(values(rank, "float64"), op=hvd.Sum, process_set=of)
                    assert np.array_equal(got, sum(values(o, "float64") for o in of.ranks))
                assert served(of.process_set_id) == 20
        if rank == 0:
            MPI.COMM_WORLD.send("done", dest=size - 1)
    hvd.barrier()
    """
    mpi.run_script(4, START + dedent(script), HOROSCALE_BACKEND="mpi")


@pytest.mark.timeout(900)
def test_communicators_are_freed(mpi: Mpi) -> None:
    script = """
    import os
    counts = []
    for turn in range(int(os.environ["CYCLES"])):
        of = hvd.add_process_set([0, 1 + turn % (size - 1)])
        if of.included():
            got = hvd.allreduce(np.ones(3, np.float32), op=hvd.Sum, process_set=of)
            assert got.tolist() == [2] * 3
        assert hvd.remove_process_set(of)
        if turn % 100 == 99:
            counts.append(len(os.listdir("/proc/self/fd")))
    assert len(set(counts[1:])) <= 1, counts
    """
    mpi.run_script(4, START + dedent(script), HOROSCALE_BACKEND="mpi", CYCLES=CYCLES, seconds=800)
