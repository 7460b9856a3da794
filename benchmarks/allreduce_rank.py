"""One rank of one implementation, for benchmarks/allreduce.py.

The benchmark starts it and tells it what to measure. It needs nothing but numpy and the
implementation, so that it runs in the environments of the peers.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import time
from collections.abc import Callable

import numpy as np
from orders import serve

WARM_UP = 5

# An implementation joins its job and returns rank, size, and what makes a float32 array of a
# length together with the call that sums it in place over all ranks and returns when that is
# done.
Call = Callable[[], object]
Prepare = Callable[[int], tuple[np.ndarray, Call]]
Implementation = tuple[int, int, Prepare]


def horoscale() -> Implementation:
    """The blocking call on memory of the user's own."""
    import horoscale.numpy as hvd

    hvd.init()

    def prepare(count: int) -> tuple[np.ndarray, Call]:
        array = np.zeros(count, np.float32)
        return array, lambda: hvd.allreduce_(array, op=hvd.Sum, name=f"user.{count}")

    return hvd.rank(), hvd.size(), prepare


def horoscale_shared() -> Implementation:
    """The same on memory that the ranks share."""
    import horoscale.numpy as hvd

    hvd.init()

    def prepare(count: int) -> tuple[np.ndarray, Call]:
        array = hvd.empty_shared(count, dtype=np.float32)
        return array, lambda: hvd.allreduce_(array, op=hvd.Sum, name=f"shared.{count}")

    return hvd.rank(), hvd.size(), prepare


def gloo() -> Implementation:
    """Gloo, as PyTorch users reach it."""
    import torch
    import torch.distributed

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    where = f"file://{os.environ['JOB_FILE']}"
    torch.distributed.init_process_group("gloo", where, rank=rank, world_size=size)

    def prepare(count: int) -> tuple[np.ndarray, Call]:
        array = np.zeros(count, np.float32)
        tensor = torch.from_numpy(array)
        return array, lambda: torch.distributed.all_reduce(tensor)

    return rank, size, prepare


def mpi() -> Implementation:
    """Whichever MPI this environment has, through mpi4py."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD

    def prepare(count: int) -> tuple[np.ndarray, Call]:
        array = np.zeros(count, np.float32)
        return array, lambda: world.Allreduce(MPI.IN_PLACE, array)

    return world.rank, world.size, prepare


class Limit:
    """The ranks' side of benchmarks/limit.c."""

    def __init__(self) -> None:
        """Map what the ranks share: room for LIMIT_BYTES from each."""
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.library = ctypes.CDLL(os.environ["LIMIT_LIBRARY"])
        self.library.limit_open.restype = ctypes.c_void_p
        self.library.limit_buffer.restype = ctypes.POINTER(ctypes.c_float)
        path = os.environ["JOB_FILE"].encode()
        capacity = ctypes.c_size_t(int(os.environ["LIMIT_BYTES"]) // 4)
        opened = self.library.limit_open(path, self.rank, self.size, capacity)
        if not opened:
            raise OSError(f"no room for {self.size} x {capacity.value} floats in shared memory")
        self.handle = ctypes.c_void_p(opened)


def limit() -> Implementation:
    """Bare shared memory, on memory of the user's own."""
    bare = Limit()

    def prepare(count: int) -> tuple[np.ndarray, Call]:
        array = np.zeros(count, np.float32)
        arguments = bare.handle, ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(count)
        return array, lambda: bare.library.limit_allreduce(*arguments)

    return bare.rank, bare.size, prepare


def limit_shared() -> Implementation:
    """The same on memory that the ranks share."""
    bare = Limit()

    def prepare(count: int) -> tuple[np.ndarray, Call]:
        pointer = bare.library.limit_buffer(bare.handle, bare.rank)
        array = np.ctypeslib.as_array(pointer, (count,))
        arguments = bare.handle, ctypes.c_size_t(count)
        return array, lambda: bare.library.limit_allreduce_shared(*arguments)

    return bare.rank, bare.size, prepare


def memcpy() -> Implementation:
    """No communication: each rank copies so many bytes. What an allreduce moves at the least."""

    def prepare(count: int) -> tuple[np.ndarray, Call]:
        array, copy = np.zeros(count, np.float32), np.zeros(count, np.float32)
        return array, lambda: np.copyto(copy, array)

    return 0, 1, prepare  # on its own


IMPLEMENTATIONS: dict[str, Callable[[], Implementation]] = {
    "horoscale": horoscale,
    "horoscale-shared": horoscale_shared,
    "gloo": gloo,
    "limit": limit,
    "limit-shared": limit_shared,
    "memcpy": memcpy,
    "mpich": mpi,
    "openmpi": mpi,
}


def verify(array: np.ndarray, allreduce: Call, rank: int, size: int) -> None:
    """Sums something known, and raises unless the sum is right."""
    pattern = np.arange(len(array), dtype=np.float32) % 1000
    array[:] = pattern + rank
    allreduce()
    if not np.array_equal(array, pattern * size + sum(range(size))):
        raise AssertionError(f"rank {rank}: wrong sum of {array.nbytes} bytes")


def measure(
    array: np.ndarray, allreduce: Call, rank: int, size: int, iterations: int
) -> list[float]:
    """Seconds of each of `iterations` calls, with the result checked before and after."""
    verify(array, allreduce, rank, size)
    array[:] = 0  # stays zero: a sum of sums would overflow
    seconds = []
    for _ in range(WARM_UP):
        allreduce()
    for _ in range(iterations):
        start = time.perf_counter()
        allreduce()
        seconds.append(time.perf_counter() - start)
    verify(array, allreduce, rank, size)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("implementation", choices=IMPLEMENTATIONS)
    parser.add_argument("socket", help="where the benchmark listens")
    arguments = parser.parse_args()
    rank, size, prepare = IMPLEMENTATIONS[arguments.implementation]()
    prepared: dict[int, tuple[np.ndarray, Call]] = {}

    def carry_out(count: int, iterations: int) -> list[float]:
        if count not in prepared:
            prepared[count] = prepare(count)
        return measure(*prepared[count], rank, size, iterations)

    serve(arguments.socket, carry_out)


if __name__ == "__main__":
    main()
