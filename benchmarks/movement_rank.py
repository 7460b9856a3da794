"""One rank of one implementation, for benchmarks/movement.py, which starts it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from orders import serve, times

WARM_UP = 5

# An implementation joins its job and returns rank, size, and a function that prepares a call. That
# function returns the input, the call, and a function that returns the last result. The larger
# side has `count` elements.
Call = Callable[[], object]
Prepared = tuple[np.ndarray, Call, Callable[[], np.ndarray]]
Prepare = Callable[[str, int], Prepared]
Implementation = tuple[int, int, Prepare]


def counts(operation: str, count: int, size: int) -> tuple[int, int]:
    """The elements of a rank's input and of its result."""
    part = count // size
    return {
        "allgather": (part, count),
        "reducescatter": (count, part),
        "alltoall": (count, count),
        "broadcast": (count, count),
    }[operation]


def horoscale(shared: bool = False, new: bool = False) -> Implementation:
    """Ours: on the user's or shared memory, with results in it or newly allocated."""
    import horoscale.numpy as hvd

    hvd.init()
    make: Any = hvd.empty_shared if shared else np.zeros

    def prepare(operation: str, count: int) -> Prepared:
        given, taken = counts(operation, count, hvd.size())
        name = f"{operation}.{count}"
        array = make(given, dtype=np.float32)
        if operation == "broadcast":
            # In place: the arrays of the others contain results from the start.
            return array, lambda: hvd.broadcast_(array, 0, name=name), lambda: array
        results = [make(taken, dtype=np.float32)]
        arguments: dict[str, Any] = {"name": name}
        if operation == "reducescatter":
            arguments["op"] = hvd.Sum
        function = getattr(hvd, operation)
        if not new:
            return array, lambda: function(array, out=results[0], **arguments), lambda: results[0]

        def call() -> None:
            results[0] = function(array, **arguments)

        return array, call, lambda: results[0]

    return hvd.rank(), hvd.size(), prepare


def gloo() -> Implementation:
    """Gloo, through PyTorch. It has no reducescatter: its ring of lists does that."""
    import torch
    from torch import distributed

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    where = f"file://{os.environ['JOB_FILE']}"
    distributed.init_process_group("gloo", where, rank=rank, world_size=size)

    def prepare(operation: str, count: int) -> Prepared:
        given, taken = counts(operation, count, size)
        array, result = torch.zeros(given), torch.zeros(taken)
        calls: dict[str, Call] = {
            "allgather": lambda: distributed.all_gather_into_tensor(result, array),
            "reducescatter": lambda: distributed.reduce_scatter_tensor(result, array),
            "alltoall": lambda: distributed.all_to_all_single(result, array),
            "broadcast": lambda: distributed.broadcast(array, 0),
        }
        outcome = array if operation == "broadcast" else result
        return array.numpy(), calls[operation], lambda: outcome.numpy()

    return rank, size, prepare


def mpi() -> Implementation:
    """The MPI of this environment, through mpi4py."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD

    def prepare(operation: str, count: int) -> Prepared:
        given, taken = counts(operation, count, world.size)
        array, result = np.zeros(given, np.float32), np.zeros(taken, np.float32)
        calls: dict[str, Call] = {
            "allgather": lambda: world.Allgather(array, result),
            "reducescatter": lambda: world.Reduce_scatter_block(array, result),
            "alltoall": lambda: world.Alltoall(array, result),
            "broadcast": lambda: world.Bcast(array, 0),
        }
        outcome = array if operation == "broadcast" else result
        return array, calls[operation], lambda: outcome

    return world.rank, world.size, prepare


IMPLEMENTATIONS: dict[str, Callable[[], Implementation]] = {
    "horoscale": horoscale,
    "horoscale-shared": lambda: horoscale(shared=True),
    "horoscale-new": lambda: horoscale(new=True),
    "gloo": gloo,
    "mpich": mpi,
    "openmpi": mpi,
}


def values_of(rank: int, given: int) -> np.ndarray:
    """A rank's input, whose sums float32 can represent."""
    return (np.arange(given) % 1021 + rank).astype(np.float32)


def expected(operation: str, count: int, rank: int, size: int) -> np.ndarray:
    """The expected result on a rank."""
    given, _ = counts(operation, count, size)
    inputs = [values_of(one, given) for one in range(size)]
    part = slice(rank * (count // size), (rank + 1) * (count // size))
    if operation == "allgather":
        return np.concatenate(inputs)
    if operation == "alltoall":
        return np.concatenate([one[part] for one in inputs])
    if operation == "broadcast":
        return inputs[0]
    return np.sum([one[part] for one in inputs], axis=0, dtype=np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("implementation", choices=IMPLEMENTATIONS)
    parser.add_argument("socket", help="address of the benchmark")
    arguments = parser.parse_args()
    rank, size, prepare = IMPLEMENTATIONS[arguments.implementation]()
    prepared: dict[tuple[str, int], Prepared] = {}

    def carry_out(operation: str, count: int, iterations: int) -> list[float]:
        case = operation, count
        if case not in prepared:
            prepared.clear()  # one case at a time
            prepared[case] = prepare(*case)
        array, call, result = prepared[case]
        array[:] = values_of(rank, len(array))
        seconds = times(call, iterations, WARM_UP)
        if not np.array_equal(result(), expected(operation, count, rank, size)):
            raise AssertionError(f"rank {rank}: wrong result of {operation}, {count} elements")
        return seconds

    serve(arguments.socket, carry_out)


if __name__ == "__main__":
    main()
