"""MPI's own collectives run on the process sets of a job over the MPI transport."""

from __future__ import annotations

import os
from textwrap import dedent

import pytest
from conftest import Mpi

# Add, use, remove: MPI has few context ids (2,048 in MPICH), so leaks are detected.
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
    """The last rank makes no calls while the others work in two overlapping sets."""
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


def test_sets_of_communicators_use_duplicates_of_them(mpi: Mpi) -> None:
    """Their ranks may be in another order, and they are not needed after init()."""
    script = """
    import numpy as np
    import horoscale.numpy as hvd
    from mpi4py import MPI
    world = MPI.COMM_WORLD
    # Attributes go from a communicator to its duplicates and to nothing else.
    copies = []
    key = MPI.Comm.Create_keyval(copy_fn=lambda *given: copies.append(given[2]) or given[2])
    half = world.Split(color=world.rank % 2, key=-world.rank)
    half.Set_attr(key, "ours")
    mixed = world.Split(color=world.rank // 2)  # rank 0 names its ranks instead
    mixed.Set_attr(key, "mixed")
    sets = [hvd.ProcessSet(half), hvd.ProcessSet([0, 1] if world.rank == 0 else mixed)]
    hvd.init(world, process_sets=sets)
    of_mixed = [] if world.rank < 2 else ["mixed"]
    assert copies == ["ours", *of_mixed], copies
    half.Free()
    mixed.Free()
    for of in sets:
        rank, ranks = hvd.rank(), of.ranks
        for root in ranks:
            got = hvd.broadcast(np.full(3, rank), root, process_set=of)
            assert got.tolist() == [root] * 3, (of, got)
        got = hvd.allreduce(np.array([rank]), op=hvd.Sum, process_set=of)
        assert got.tolist() == [sum(ranks)]
        mine = np.arange(3) + rank  # one row more for the first member
        part = hvd.reducescatter(mine, op=hvd.Sum, process_set=of)
        whole = 2 * np.arange(3) + sum(ranks)
        assert np.array_equal(part, np.array_split(whole, 2)[of.rank()]), (of, part)
        assert hvd.metrics()["process_sets"][str(of.process_set_id)]["mpi_buckets"] == 4
    hvd.shutdown()
    assert world.allreduce(1) == 4
    """
    mpi.run_script(4, script, HOROSCALE_BACKEND="mpi")


@pytest.mark.timeout(4000)
def test_what_comes_and_goes_is_freed(mpi: Mpi) -> None:
    """Memory, descriptors and communicators do not grow. The soak has 10,000 cycles."""
    script = """
    import os, time
    def until(count):
        end = time.monotonic() + 20
        while hvd.metrics()["mpi_communicators"] != count:
            assert time.monotonic() < end, hvd.metrics()["mpi_communicators"]
            time.sleep(0.01)  # they are freed by a thread
    def memory():
        with open("/proc/self/smaps_rollup") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("Private_Dirty"))
    def living_threads():  # the kernel lists a thread a little longer than join() waits for it
        counts = []
        for _ in range(20):
            counts.append(len(os.listdir("/proc/self/task")))
            time.sleep(0.001)
        return min(counts)
    def look():
        hvd.barrier()
        until(living)
        return len(os.listdir("/proc/self/fd")), living_threads(), memory()
    living = 3  # of point-to-point, of collectives, and of the global set
    until(living)
    turns = int(os.environ["CYCLES"])
    seen = []
    for turn in range(turns):
        of = hvd.add_process_set([0, 1 + turn % (size - 1)])
        if of.included():
            got = hvd.allreduce(np.ones(3, np.float32), op=hvd.Sum, process_set=of)
            assert got.tolist() == [2] * 3
            assert served(of.process_set_id) == 1
        assert hvd.remove_process_set(of)
        if turn % (turns // 10) == turns // 10 - 1:
            seen.append(look())
    # What a library keeps for the next time is there after the first turns.
    descriptors, threads, kilobytes = zip(*seen[1:])
    assert len(set(descriptors)) == len(set(threads)) == 1, seen
    if rank == 0:
        sys.stdout.write(f"after each tenth of {turns} turns: {seen}\\n")
    assert kilobytes[-1] - kilobytes[0] < 1024 + turns // 10, seen
    hvd.shutdown()
    hvd.init()
    assert hvd.metrics()["mpi_communicators"] <= living
    """
    script = "import sys" + START + dedent(script)
    mpi.run_script(4, script, HOROSCALE_BACKEND="mpi", CYCLES=CYCLES, seconds=1800)
