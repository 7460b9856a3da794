"""PyTorch's own libraries over the backend of torch.distributed, beside Gloo or one process."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import horoscale.torch as hvd
import horoscale.torch.distributed  # noqa: F401

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(os.environ.get("HOROSCALE_SIZE") != "2", reason="slow: on 2 ranks only"),
    pytest.mark.skipif(
        tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6),
        reason="the libraries' present names",
    ),
]


@pytest.fixture(scope="module", autouse=True)
def gloo() -> Iterator[Any]:
    dist.init_process_group("horoscale", init_method="horoscale://")
    yield dist.new_group(backend="gloo")
    dist.destroy_process_group()


@pytest.fixture
def mesh() -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (hvd.size(),))


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, 4))


def batch(rank: int | None = None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(hvd.rank() if rank is None else rank)
    return torch.randn(6, 16, generator=generator)


def train(module: Any, steps: int = 3) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        module(batch()).square().mean().backward()
        optimizer.step()
    return [one.detach().clone() for one in module.parameters()]


def full_training() -> nn.Module:
    """What one process gets that sees all ranks' batches."""
    whole = model()
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1, momentum=0.9)
    everything = torch.cat([batch(rank) for rank in range(hvd.size())])
    for _ in range(3):
        optimizer.zero_grad()
        whole(everything).square().mean().backward()
        optimizer.step()
    return whole


def close_to(results: Any, expected: Any) -> None:
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result, wanted, rtol=1e-5, atol=1e-6)


def hooked(hook: str) -> Callable[[Any], None]:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    def register(module: Any) -> None:
        if hook == "powerSGD":
            # Its state takes the group by itself.
            state = powerSGD_hook.PowerSGDState(module.process_group, start_powerSGD_iter=2)
            module.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        elif hook:
            module.register_comm_hook(module.process_group, getattr(default_hooks, hook))

    return register


@pytest.mark.parametrize("hook", ["", "allreduce_hook", "fp16_compress_hook", "powerSGD"])
def test_ddp(gloo: Any, hook: str) -> None:
    trained = []
    for group in (dist.group.WORLD, gloo):
        torch.manual_seed(0)
        # The callbacks of PowerSGD begin allreduces whenever they run: buckets would mix.
        megabytes = 25 if hook == "powerSGD" else 0.001
        module = DistributedDataParallel(model(), process_group=group, bucket_cap_mb=megabytes)
        hooked(hook)(module)
        trained.append(train(module))
    if hvd.size() <= 2:
        assert all(torch.equal(*pair) for pair in zip(*trained, strict=True))
    elif not hook:
        close_to(*trained)


def test_ddp_no_sync_unused_parameters_and_join() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(16, 2), nn.Linear(16, 2)

        def forward(self, given: torch.Tensor) -> torch.Tensor:
            return self.one(given) if hvd.rank() == 0 else self.two(given)  # type: ignore[no-any-return]

    module = DistributedDataParallel(Branches(), find_unused_parameters=True)
    with module.no_sync():
        module(batch()).sum().backward()
    module(batch()).sum().backward()
    for parameter in module.parameters():
        same = [torch.empty_like(parameter.grad) for _ in range(hvd.size())]
        dist.all_gather(same, parameter.grad)
        assert all(torch.equal(one, parameter.grad) for one in same)
    uneven = DistributedDataParallel(model())
    with uneven.join():
        for _ in range(1 + hvd.rank()):
            uneven(batch()).sum().backward()


def test_fsdp2(mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    module = model()
    for layer in module:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    train(module)
    full = [one.full_tensor() for one in module.parameters()]
    close_to(full, [one.detach() for one in full_training().parameters()])


def test_fsdp1() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    module = FullyShardedDataParallel(model(), device_id=torch.device("cpu"))
    train(module)
    with FullyShardedDataParallel.summon_full_params(module):
        got = [one.detach().clone() for one in module.parameters()]
    close_to(got, [one.detach() for one in full_training().parameters()])


def test_tensor_parallel_and_dtensor(mesh: Any) -> None:
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    whole = torch.arange(24.0).view(8, 3)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    assert torch.equal(sharded.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
    assert torch.equal(sharded.redistribute(mesh, [Replicate()]).to_local(), whole)
    assert isinstance(sharded + sharded, DTensor)
    reference, split = model(), model()
    parallelize_module(split, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    given = batch(0)
    close_to([split(given)], [reference(given)])


def test_zero_redundancy_optimizer() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    modules = [DistributedDataParallel(model()) for _ in range(2)]
    plain = torch.optim.Adam(modules[0].parameters(), lr=0.01)
    sharded = ZeroRedundancyOptimizer(modules[1].parameters(), torch.optim.Adam, lr=0.01)
    for module, optimizer in zip(modules, (plain, sharded), strict=True):
        for _ in range(2):
            optimizer.zero_grad()
            module(batch()).square().mean().backward()
            optimizer.step()
    close_to(modules[1].parameters(), modules[0].parameters())


@pytest.mark.parametrize("schedule", ["ScheduleGPipe", "Schedule1F1B"])
def test_pipelining(need_ranks: None, schedule: str) -> None:
    from torch.distributed import pipelining

    size, rank = hvd.size(), hvd.rank()
    torch.manual_seed(5)
    stages = [nn.Linear(8, 8) for _ in range(size)]
    reference = nn.Sequential(*copy.deepcopy(stages))
    stage = pipelining.PipelineStage(stages[rank], rank, size, torch.device("cpu"))
    given = torch.arange(64.0).view(8, 8) / 64
    run = getattr(pipelining, schedule)(
        stage, n_microbatches=4, loss_fn=lambda out, target: (out - target).square().sum()
    )
    losses: list[torch.Tensor] = []
    arguments = (given,) if rank == 0 else ()
    if rank == size - 1:
        output = run.step(*arguments, target=torch.zeros(8, 8), losses=losses)
        close_to([output], [reference(given)])
    else:
        run.step(*arguments)
    reference(given).square().sum().backward()
    gradient = reference[rank].weight.grad
    # Gradients are scaled by the number of microbatches.
    close_to([stages[rank].weight.grad * 4], [gradient])


def test_checkpoint(mesh: Any, tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.tensor import Shard, distribute_tensor

    folder = [str(tmp_path)]
    dist.broadcast_object_list(folder, src=0)
    whole = torch.arange(40.0).view(10, 4)
    dcp.save({"weight": distribute_tensor(whole, mesh, [Shard(0)])}, checkpoint_id=folder[0])
    loaded = {"weight": distribute_tensor(torch.zeros(10, 4), mesh, [Shard(1)])}
    dcp.load(loaded, checkpoint_id=folder[0])
    assert torch.equal(loaded["weight"].full_tensor(), whole)
    dist.barrier()


def test_functional_collectives_and_compile() -> None:
    import torch.distributed._functional_collectives as functional

    size = hvd.size()

    def step(given: torch.Tensor) -> torch.Tensor:
        reduced = functional.all_reduce(given * 2, "sum", dist.group.WORLD)
        return functional.all_gather_tensor(reduced, 0, dist.group.WORLD) + 1

    expected = torch.full((4 * size,), 2.0 * size + 1)
    assert torch.equal(step(torch.ones(4)), expected)
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(4)), expected)
    scattered = functional.reduce_scatter_tensor(torch.ones(2 * size), "sum", 0, dist.group.WORLD)
    assert torch.equal(scattered + 0, torch.full((2,), float(size)))
