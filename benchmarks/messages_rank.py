"""One rank of one implementation, for benchmarks/messages.py."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

import numpy as np
from orders import serve, times

WARM_UP = 5

# Its rank, and a function that allocates memory and returns the calls that send and receive it.
Calls = tuple[Callable[[], object], Callable[[], object]]
Implementation = tuple[int, Callable[[int], tuple[np.ndarray, Calls]]]


def horoscale(shared: bool = False) -> Implementation:
    """Ours: on the user's memory, or on memory that the ranks share."""
    import horoscale.numpy as hvd

    hvd.init()
    peer = 1 - hvd.rank()

    def prepare(size: int) -> tuple[np.ndarray, Calls]:
        array = hvd.empty_shared(size, dtype=np.uint8) if shared else np.zeros(size, np.uint8)
        return array, (lambda: hvd.send(array, peer), lambda: hvd.recv(array, peer))

    return hvd.rank(), prepare


def horoscale_view() -> Implementation:
    """Ours without a copy: sent from memory that the ranks share, and read there."""
    import horoscale.numpy as hvd

    hvd.init()
    peer = 1 - hvd.rank()

    def prepare(size: int) -> tuple[np.ndarray, Calls]:
        array = hvd.empty_shared(size, dtype=np.uint8)
        is_copied = [True]  # the first message is verified

        def receive() -> None:
            with hvd.recv_view(size, np.uint8, peer) as message:
                if is_copied:
                    array[:] = message
                    is_copied.clear()

        return array, (lambda: hvd.send(array, peer), receive)

    return hvd.rank(), prepare


def mpi() -> Implementation:
    """MPI, through mpi4py's buffer calls."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD

    def prepare(size: int) -> tuple[np.ndarray, Calls]:
        array, peer = np.zeros(size, np.uint8), 1 - world.rank
        return array, (lambda: world.Send(array, peer), lambda: world.Recv(array, peer))

    return world.rank, prepare


def gloo() -> Implementation:
    """Gloo, through PyTorch."""
    import torch
    from torch import distributed

    rank = int(os.environ["RANK"])
    where = f"file://{os.environ['JOB_FILE']}"
    distributed.init_process_group("gloo", where, rank=rank, world_size=2)

    def prepare(size: int) -> tuple[np.ndarray, Calls]:
        tensor = torch.from_numpy(np.zeros(size, np.uint8))  # on the same pages as all others
        calls = (
            lambda: distributed.send(tensor, 1 - rank),
            lambda: distributed.recv(tensor, 1 - rank),
        )
        return tensor.numpy(), calls

    return rank, prepare


def memcpy() -> Implementation:
    """No message: each rank copies the bytes twice."""

    def prepare(size: int) -> tuple[np.ndarray, Calls]:
        array, copy = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
        return array, (lambda: np.copyto(copy, array), lambda: np.copyto(array, copy))

    return int(os.environ["RANK"]), prepare


IMPLEMENTATIONS: dict[str, Callable[[], Implementation]] = {
    "horoscale": horoscale,
    "horoscale-shared": lambda: horoscale(shared=True),
    "horoscale-view": horoscale_view,
    "mpich": mpi,
    "gloo": gloo,
    "memcpy": memcpy,
}


def verify(array: np.ndarray, to_and_fro: Callable[[], object], rank: int) -> None:
    """Send rank 0's bytes back and forth; raise unless both ranks then have them."""
    pattern = (np.arange(array.size) % 251).astype(np.uint8)
    array[:] = pattern if rank == 0 else 0
    to_and_fro()
    if not np.array_equal(array, pattern):
        raise AssertionError(f"rank {rank}: a wrong message of {array.size} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("implementation", choices=IMPLEMENTATIONS)
    parser.add_argument("address", help="address of the benchmark")
    arguments = parser.parse_args()
    rank, prepare = IMPLEMENTATIONS[arguments.implementation]()

    def measure(size: int, count: int) -> list[float]:
        array, (send, receive) = prepare(size)
        first, second = (send, receive) if rank == 0 else (receive, send)

        def to_and_fro() -> None:
            first()
            second()

        if arguments.implementation != "memcpy":
            verify(array, to_and_fro, rank)
        return [seconds / 2 for seconds in times(to_and_fro, count, WARM_UP)]

    serve(arguments.address, measure)


if __name__ == "__main__":
    main()
