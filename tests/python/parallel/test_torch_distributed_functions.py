"""torch.distributed functions that depend on backend names, and rarely used operations."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import horoscale.torch as hvd
from horoscale.torch.distributed import GroupTimeoutError, devices, monitored, process_set

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # names that torch has changed


@pytest.fixture(scope="module", autouse=True)
def gloo() -> Iterator[Any]:
    """The default group is horoscale's; the value is a Gloo group."""
    warnings.simplefilter("ignore")
    dist.init_process_group("horoscale", init_method="horoscale://")
    yield dist.new_group(backend="gloo")
    dist.destroy_process_group()


def sum_of(group: Any) -> int:
    """The ranks that participated in an all_reduce, as a bit for each."""
    bits = torch.tensor([1 << dist.get_rank()])
    dist.all_reduce(bits, group=group)
    return int(bits.item())


def test_monitored_barriers_of_both_backends(gloo: Any, need_ranks: None) -> None:
    dist.monitored_barrier()
    dist.monitored_barrier(gloo)
    dist.monitored_barrier(timeout=timedelta(seconds=20), wait_all_ranks=True)
    if dist.get_rank() == 0:
        with pytest.raises(GroupTimeoutError, match=r"^Rank 1 failed to pass monitoredBarrier in"):
            dist.monitored_barrier(timeout=timedelta(milliseconds=20))
    dist.barrier()


def test_a_barrier_meets_none_of_a_former_default_group(need_ranks: None) -> None:
    """A rank that aborts leaves a receive behind, which takes no message of another group."""

    def meet(seconds: float) -> None:
        number = next(monitored.numbers_of_group(0))
        monitored.meet(0, range(dist.get_world_size()), dist.get_rank(), number, seconds, False)

    if dist.get_rank() == 0:
        monitored.numbers_of_group(0)
    else:
        with pytest.raises(GroupTimeoutError, match="rank 0"):
            meet(0.0)
    dist.barrier()
    meet(20.0)


def test_set_pg_timeout(gloo: Any, need_ranks: None) -> None:
    group = dist.new_group()
    dist.distributed_c10d._set_pg_timeout(timedelta(milliseconds=20), group)
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=30), gloo)
    assert group.timeout == timedelta(milliseconds=20)
    if dist.get_rank() == 0:
        with pytest.raises(GroupTimeoutError, match=r"timeout of 0\.02 s"):
            dist.barrier(group=group)
    dist.barrier()
    dist.destroy_process_group(group)


def test_split_group(need_ranks: None) -> None:
    if not hasattr(dist, "split_group"):
        pytest.skip("this PyTorch has no split_group")
    size, rank = dist.get_world_size(), dist.get_rank()
    middle = size // 2
    parts = [list(range(middle)), list(range(middle, size))]
    whole = dist.new_group(timeout=timedelta(seconds=77))
    half = dist.split_group(whole, parts, group_desc="half")
    own = parts[rank >= middle]
    assert half.timeout == whole.timeout
    assert process_set(half).ranks == own
    assert sum_of(half) == sum(1 << one for one in own)
    last = dist.split_group(split_ranks=[[size - 1]])
    assert (last is not None) == (rank == size - 1)
    # Ranks of the parent rather than of the job; a group without other members.
    if rank >= middle:
        within = dist.split_group(half, [[one] for one in range(dist.get_world_size(half))])
        assert process_set(within).ranks == [rank]
    for wrong in ([], [[]], [[0], [0, 1]], [[size]]):
        with pytest.raises(ValueError, match="split_ranks"):
            dist.split_group(split_ranks=wrong)
    for group in (half, whole):
        dist.destroy_process_group(group)


def test_abort_fails_what_is_pending(need_ranks: None) -> None:
    if not hasattr(dist.distributed_c10d, "_abort_process_group"):
        pytest.skip("this PyTorch has no abort")
    group = dist.new_group()
    if dist.get_rank() == 0:
        work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
        dist.distributed_c10d._abort_process_group(group)
        with pytest.raises(RuntimeError):
            work.wait()
        with pytest.raises(hvd.HorovodInternalError, match="aborted"):
            group.allreduce([torch.ones(3)])
    else:
        with pytest.raises(RuntimeError):
            dist.barrier(group=group)
        dist.destroy_process_group(group)
    dist.barrier()


def test_all_gather_coalesced(gloo: Any) -> None:
    size = dist.get_world_size()
    own = [torch.full((2,), float(dist.get_rank())), torch.full((3, 2), 10.0 + dist.get_rank())]
    results = [[torch.empty_like(one) for one in own] for _ in range(size)]
    dist.all_gather_coalesced(results, own)
    for rank, (first, second) in enumerate(results):
        assert torch.equal(first, torch.full((2,), float(rank)))
        assert torch.equal(second, torch.full((3, 2), 10.0 + rank))


@pytest.mark.parametrize("dense", [(), (2, 3)], ids=["values", "rows"])
def test_sparse_all_reduce(gloo: Any, dense: tuple[int, ...]) -> None:
    """Each rank has other indices, some of them twice, and the last one has none."""
    size, rank = dist.get_world_size(), dist.get_rank()
    count = 0 if rank == size - 1 else rank + 2
    places = torch.stack([torch.arange(count) // 2, torch.full((count,), rank)])
    values = torch.ones(count, *dense) * (rank + 1)
    ours = torch.sparse_coo_tensor(places, values, (size + 2, size, *dense), check_invariants=True)
    theirs, average = ours.clone(), ours.clone()
    dist.all_reduce(ours)
    dist.all_reduce(theirs, group=gloo)
    assert torch.equal(ours.to_dense(), theirs.to_dense())
    work = dist.all_reduce(average, op=dist.ReduceOp.AVG, async_op=True)
    assert work.wait()
    torch.testing.assert_close(average.to_dense(), theirs.to_dense() / size)
    with pytest.raises(NotImplementedError, match="sparse"):
        dist.all_reduce(ours, op=dist.ReduceOp.MAX)


@pytest.mark.parametrize("names", ["horoscale", "cpu:horoscale,cuda:horoscale"])
def test_a_group_of_all_devices(names: str) -> None:
    group = dist.new_group(backend=names)
    assert sum_of(group) == (1 << dist.get_world_size()) - 1
    devices.check(torch.device("cuda", 0), group)
    with pytest.raises(NotImplementedError, match="no backend for meta"):
        dist.all_reduce(torch.ones(2, device="meta"), group=group)
    dist.destroy_process_group(group)


def trained(group: Any) -> list[torch.Tensor]:
    """The parameters of a model with sparse gradients after some steps of DDP."""
    torch.manual_seed(1)
    embedding = torch.nn.EmbeddingBag(20, 4, sparse=True)
    module = DistributedDataParallel(
        torch.nn.Sequential(embedding, torch.nn.Linear(4, 2)), process_group=group
    )
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for step in range(4):
        generator = torch.Generator().manual_seed(7 * dist.get_rank() + step)
        optimizer.zero_grad()
        module(torch.randint(0, 20, (5, 3), generator=generator)).sum().backward()
        optimizer.step()
    return [parameter.detach() for parameter in module.parameters()]


def test_ddp_with_sparse_gradients(gloo: Any) -> None:
    for ours, theirs in zip(trained(None), trained(gloo), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_group_has_no_other_backend_beside() -> None:
    group = dist.new_group(backend="cpu:horoscale,cuda:gloo")
    assert sum_of(group) == (1 << dist.get_world_size()) - 1
    with pytest.raises(NotImplementedError, match=r'new_group\(backend="gloo"\)'):
        devices.check(torch.device("cuda", 0), group)
    dist.destroy_process_group(group)
