"""The backend of torch.distributed under mpirun."""

from __future__ import annotations

import pytest
from conftest import Mpi

PROGRAM = """
    import torch, torch.distributed as dist
    import horoscale.torch.distributed

    dist.init_process_group("horoscale", init_method="horoscale://")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    model(torch.full((2, 3), float(rank))).sum().backward()
    mean = sum(range(size)) * 2 / size
    assert torch.allclose(model.module.weight.grad, torch.full((1, 3), mean))
    received = torch.empty(5)
    send = dist.isend(torch.full((5,), float(rank)), (rank + 1) % size)
    assert dist.recv(received, (rank - 1) % size) == (rank - 1) % size
    send.wait()
    assert received.tolist() == [float((rank - 1) % size)] * 5
    group = dist.new_group([1, 2])
    if rank in (1, 2):
        total = torch.ones(1)
        dist.all_reduce(total, group=group)
        assert total.item() == 2
    {end}
"""


@pytest.mark.timeout(200)
@pytest.mark.parametrize("family", ["openmpi", "mpich"])
def test_groups_and_ddp(family: str, both: dict[str, Mpi]) -> None:
    """Even if the program doesn't end it."""
    end = "dist.destroy_process_group()" if family == "mpich" else "pass"
    both[family].run_script(3, PROGRAM.format(end=end), seconds=120)
