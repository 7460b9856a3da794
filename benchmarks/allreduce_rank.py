"""One rank of one implementation, for benchmarks/allreduce.py.

The benchmark starts it and sends it measurement orders. It needs only numpy and the implementation,
so it runs in the environments of the peers.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import select
import socket
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from orders import serve, times

WARM_UP = 5
CONNECT_SECONDS = 60

# An implementation joins its job and returns rank, size, and a function that prepares a call. That
# function creates arrays, and returns them with the call that sums them in place over all ranks and
# waits for the result. One array is summed by the blocking call, several are summed at once.
Arrays = list[np.ndarray]
Call = Callable[[], object]
Prepare = Callable[[int, str, int], tuple[Arrays, Call]]
Implementation = tuple[int, int, Prepare]


def element(dtype: str) -> np.dtype:
    """The numpy dtype; for bfloat16 that of ml_dtypes."""
    if dtype == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(dtype)


def horoscale(shared: bool = False) -> Implementation:
    """Ours: on the user's memory, or on memory that the ranks share."""
    import horoscale.numpy as hvd

    hvd.init()
    make = hvd.empty_shared if shared else np.zeros

    def prepare(count: int, dtype: str, tensors: int) -> tuple[Arrays, Call]:
        arrays = [make(count, dtype=element(dtype)) for _ in range(tensors)]
        # Each has its own name, so that the response cache is used.
        names = [f"{dtype}.{count}.{index}.{tensors}" for index in range(tensors)]
        if tensors == 1:
            array, name = arrays[0], names[0]
            return arrays, lambda: hvd.allreduce_(array, op=hvd.Sum, name=name)

        def call() -> None:
            handles = [
                hvd.allreduce_async_(array, op=hvd.Sum, name=name)
                for array, name in zip(arrays, names, strict=True)
            ]
            for handle in handles:
                hvd.synchronize(handle)

        return arrays, call

    return hvd.rank(), hvd.size(), prepare


def horoscale_torch() -> Implementation:
    """Ours, through PyTorch."""
    import horoscale.torch as hvd

    hvd.init()

    def prepare(count: int, dtype: str, tensors: int) -> tuple[Arrays, Call]:
        made, arrays = torch_tensors(count, dtype, tensors)
        names = [f"{dtype}.{count}.{index}.{tensors}" for index in range(tensors)]
        if tensors == 1:
            tensor, name = made[0], names[0]
            return arrays, lambda: hvd.allreduce_(tensor, op=hvd.Sum, name=name)

        def call() -> None:
            handles = [
                hvd.allreduce_async_(tensor, op=hvd.Sum, name=name)
                for tensor, name in zip(made, names, strict=True)
            ]
            for handle in handles:
                hvd.synchronize(handle)

        return arrays, call

    return hvd.rank(), hvd.size(), prepare


def torch_tensors(count: int, dtype: str, tensors: int) -> tuple[list[Any], Arrays]:
    """PyTorch tensors of zeros, and arrays over their memory."""
    import torch

    made = [torch.zeros(count, dtype=getattr(torch, dtype)) for _ in range(tensors)]
    return made, [each.view(torch.uint8).numpy().view(element(dtype)) for each in made]


def gloo() -> Implementation:
    """Gloo, through PyTorch."""
    from torch import distributed

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    where = f"file://{os.environ['JOB_FILE']}"
    distributed.init_process_group("gloo", where, rank=rank, world_size=size)

    def prepare(count: int, dtype: str, tensors: int) -> tuple[Arrays, Call]:
        made, arrays = torch_tensors(count, dtype, tensors)
        if tensors == 1:
            return arrays, lambda: distributed.all_reduce(made[0])

        def call() -> None:
            for work in [distributed.all_reduce(each, async_op=True) for each in made]:
                work.wait()

        return arrays, call

    return rank, size, prepare


def mpi() -> Implementation:
    """The MPI of this environment, through mpi4py."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD

    def prepare(count: int, dtype: str, tensors: int) -> tuple[Arrays, Call]:
        arrays = [np.zeros(count, dtype) for _ in range(tensors)]
        if tensors == 1:
            array = arrays[0]
            return arrays, lambda: world.Allreduce(MPI.IN_PLACE, array)

        def call() -> None:
            MPI.Request.Waitall([world.Iallreduce(MPI.IN_PLACE, array) for array in arrays])

        return arrays, call

    return world.rank, world.size, prepare


class Limit:
    """Run as a rank of benchmarks/limit.c."""

    def __init__(self) -> None:
        """Map the memory that the ranks share: LIMIT_BYTES for each."""
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
    """Bare shared memory, on the user's memory; one array after another."""
    bare = Limit()

    def prepare(count: int, dtype: str, tensors: int) -> tuple[Arrays, Call]:
        arrays = [np.zeros(count, dtype) for _ in range(tensors)]
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in arrays]

        def call() -> None:
            for pointer in pointers:
                bare.library.limit_allreduce(bare.handle, pointer, ctypes.c_size_t(count))

        return arrays, call

    return bare.rank, bare.size, prepare


def limit_shared() -> Implementation:
    """The same on memory that the ranks share, with one array."""
    bare = Limit()

    def prepare(count: int, dtype: str, tensors: int) -> tuple[Arrays, Call]:
        if tensors != 1:
            raise ValueError("limit-shared has one array")
        pointer = bare.library.limit_buffer(bare.handle, bare.rank)
        array = np.ctypeslib.as_array(pointer, (count,))
        arguments = bare.handle, ctypes.c_size_t(count)
        return [array], lambda: bare.library.limit_allreduce_shared(*arguments)

    return bare.rank, bare.size, prepare


def tcp() -> Implementation:
    """A bare TCP stream between two ranks: each sends its array, and adds what it receives.

    Each direction thus carries as many bytes as in any allreduce between two hosts.
    """
    rank = int(os.environ["RANK"])
    host, port = os.environ["TCP_ADDRESS"].rsplit(":", 1)
    if rank == 0:
        with socket.create_server((host, int(port))) as listener:
            stream = listener.accept()[0]
    else:
        stream = connect(host, int(port))
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream.setblocking(False)

    def prepare(count: int, dtype: str, tensors: int) -> tuple[Arrays, Call]:
        arrays = [np.zeros(count, dtype) for _ in range(tensors)]
        received = np.empty(count, dtype)

        def call() -> None:
            for array in arrays:
                exchange(stream, array.view(np.uint8).data, received.view(np.uint8).data)
                np.add(array, received, array)

        return arrays, call

    return rank, 2, prepare


def connect(host: str, port: int) -> socket.socket:
    """Connect to a peer that may not listen yet."""
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            return socket.create_connection((host, port))
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def exchange(stream: socket.socket, outgoing: memoryview, incoming: memoryview) -> None:
    """Send and receive the same number of bytes at the same time."""
    while outgoing or incoming:
        writers = [stream] if outgoing else []
        readable, writable, _ = select.select([stream] if incoming else [], writers, [])
        if writable:
            outgoing = outgoing[stream.send(outgoing) :]
        if readable:
            count = stream.recv_into(incoming)
            if count == 0:
                raise ConnectionError("the other rank has gone")
            incoming = incoming[count:]


def memcpy() -> Implementation:
    """No communication: each rank copies the minimum number of bytes of an allreduce."""

    def prepare(count: int, dtype: str, tensors: int) -> tuple[Arrays, Call]:
        arrays = [np.zeros(count, element(dtype)) for _ in range(tensors)]
        copy = np.zeros(count, element(dtype))

        def call() -> None:
            for array in arrays:
                np.copyto(copy, array)

        return arrays, call

    return 0, 1, prepare  # alone


IMPLEMENTATIONS: dict[str, Callable[[], Implementation]] = {
    "horoscale": horoscale,
    "horoscale-shared": lambda: horoscale(shared=True),
    "horoscale-torch": horoscale_torch,
    "gloo": gloo,
    "limit": limit,
    "limit-shared": limit_shared,
    "memcpy": memcpy,
    "mpich": mpi,
    "openmpi": mpi,
    "tcp": tcp,
}


def verify(arrays: Arrays, allreduce: Call, rank: int, size: int) -> None:
    """Sum known values that bfloat16 can represent; raise unless the sums are correct."""
    pattern = (np.arange(len(arrays[0])) % 17).astype(arrays[0].dtype)
    for array in arrays:
        array[:] = pattern + np.array(rank, array.dtype)
    allreduce()
    right = (pattern.astype(np.float32) * size + sum(range(size))).astype(arrays[0].dtype)
    for index, array in enumerate(arrays):
        if not np.array_equal(array, right):
            raise AssertionError(f"rank {rank}: wrong sum of array {index}, {array.nbytes} bytes")


def measure(arrays: Arrays, allreduce: Call, rank: int, size: int, iterations: int) -> list[float]:
    """Seconds of each of `iterations` calls, with the result checked before and after."""
    verify(arrays, allreduce, rank, size)
    for array in arrays:
        array[:] = 0  # input is zero: repeated sums would overflow
    seconds = times(allreduce, iterations, WARM_UP)
    verify(arrays, allreduce, rank, size)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("implementation", choices=IMPLEMENTATIONS)
    parser.add_argument("socket", help="address of the benchmark")
    arguments = parser.parse_args()
    rank, size, prepare = IMPLEMENTATIONS[arguments.implementation]()
    prepared: dict[tuple[int, str, int], tuple[Arrays, Call]] = {}

    def carry_out(count: int, dtype: str, tensors: int, iterations: int) -> list[float]:
        case = count, dtype, tensors
        if case not in prepared:
            prepared.clear()  # one case at a time
            prepared[case] = prepare(*case)
        return measure(*prepared[case], rank, size, iterations)

    serve(arguments.socket, carry_out)


if __name__ == "__main__":
    main()
