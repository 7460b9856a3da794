"""One rank of one implementation, for benchmarks/nccl.py, which sends it measurement orders."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

import torch
from orders import serve, times

WARM_UP = 5

# An implementation joins its job and returns rank, size, and a function that sums tensors in place
# over all ranks. The function returns when the current stream waits for all of them.
Tensors = list[torch.Tensor]
Implementation = tuple[int, int, Callable[[Tensors], None]]


def horoscale() -> Implementation:
    """Ours."""
    import horoscale.torch as hvd

    hvd.init()

    def allreduce(tensors: Tensors) -> None:
        # Each has its own name, so that the response cache is used.
        case = f"{tensors[0].numel()}.{len(tensors)}"
        for handle in [
            hvd.allreduce_async_(tensor, op=hvd.Sum, name=f"{case}.{index}")
            for index, tensor in enumerate(tensors)
        ]:
            hvd.synchronize(handle)

    return hvd.rank(), hvd.size(), allreduce


def nccl() -> Implementation:
    """PyTorch's."""
    from torch import distributed

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank % torch.cuda.device_count())
    where = f"file://{os.environ['JOB_FILE']}"
    distributed.init_process_group("nccl", where, rank=rank, world_size=size)

    def allreduce(tensors: Tensors) -> None:
        for work in [distributed.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()

    return rank, size, allreduce


IMPLEMENTATIONS = {"horoscale": horoscale, "nccl": nccl}


def verify(tensors: Tensors, allreduce: Callable[[], None], rank: int, size: int) -> None:
    """Sum known values; raise if the sum is wrong."""
    for tensor in tensors:
        tensor.fill_(rank + 1)
    allreduce()
    for index, tensor in enumerate(tensors):
        if not bool((tensor == size * (size + 1) // 2).all()):
            raise AssertionError(f"rank {rank}: wrong sum of tensor {index}, {tensor.nbytes} bytes")
        tensor.zero_()  # repeated sums would overflow


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("implementation", choices=IMPLEMENTATIONS)
    parser.add_argument("socket", help="address of the benchmark")
    arguments = parser.parse_args()
    rank, size, allreduce = IMPLEMENTATIONS[arguments.implementation]()
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)

    def measure(count: int, num_tensors: int, iterations: int) -> list[float]:
        tensors = [torch.zeros(count, device=device) for _ in range(num_tensors)]

        def call() -> None:
            allreduce(tensors)
            torch.cuda.synchronize(device)

        verify(tensors, call, rank, size)
        seconds = times(call, iterations, WARM_UP)
        verify(tensors, call, rank, size)
        return seconds

    serve(arguments.socket, measure)


if __name__ == "__main__":
    main()
