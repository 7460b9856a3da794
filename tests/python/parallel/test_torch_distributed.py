"""The backend of torch.distributed: every operation, compared with Gloo's on the same ranks."""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import horoscale.torch as hvd
from horoscale.common.process_sets import give_up_process_set
from horoscale.torch.distributed import (
    GroupTimeoutError,
    HoroscaleProcessGroup,
    monitored_barrier,
    process_set,
)

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # names that torch has changed

PATIENCE_S = 40
DTYPES = [torch.float32, torch.int64, torch.bfloat16, torch.uint8]


@pytest.fixture(scope="module", autouse=True)
def gloo() -> Iterator[Any]:
    """The default group is horoscale's; the value is a Gloo group."""
    warnings.simplefilter("ignore")
    before = hvd.get_process_set_ids_and_ranks()
    dist.init_process_group("horoscale", init_method="horoscale://")
    yield dist.new_group(backend="gloo")
    dist.destroy_process_group()
    assert hvd.is_initialized()  # the job was joined before, and continues
    deadline = time.monotonic() + PATIENCE_S
    while hvd.get_process_set_ids_and_ranks() != before:  # once others have destroyed it
        assert time.monotonic() < deadline, "sets of groups are left"
        time.sleep(0.01)


def values(*shape: int, dtype: torch.dtype = torch.float32, of: int | None = None) -> torch.Tensor:
    """Small integers, different on each rank: sums have the same bits in any order."""
    generator = torch.Generator().manual_seed(17 + (hvd.rank() if of is None else of))
    return torch.randint(0, 5, shape, generator=generator).to(dtype)


def test_the_group_says_what_it_is() -> None:
    group = dist.group.WORLD
    assert isinstance(group, HoroscaleProcessGroup)
    assert dist.get_backend() == "horoscale"
    assert (dist.get_rank(), dist.get_world_size()) == (hvd.rank(), hvd.size())
    assert process_set() is hvd.global_process_set
    assert hvd.ProcessSet.from_group() is hvd.global_process_set
    before = group._get_sequence_number_for_group()
    dist.barrier()
    assert group._get_sequence_number_for_group() == before + 1


@pytest.mark.parametrize("op", ["SUM", "PRODUCT", "MIN", "MAX"])
def test_all_reduce(gloo: Any, op: str) -> None:
    operator = getattr(dist.ReduceOp, op)
    for dtype, count in [*((dtype, 7) for dtype in DTYPES), (torch.float32, 0), (torch.half, 9999)]:
        ours, theirs = values(count, dtype=dtype), values(count, dtype=dtype)
        dist.all_reduce(ours, op=operator)
        dist.all_reduce(theirs, op=operator, group=gloo)
        assert torch.equal(ours, theirs), (dtype, count)


@pytest.mark.parametrize("op", ["BAND", "BOR", "BXOR"])
def test_all_reduce_bitwise(gloo: Any, op: str) -> None:
    ours, theirs = values(33, dtype=torch.int32), values(33, dtype=torch.int32)
    operator = getattr(dist.ReduceOp, op)
    dist.all_reduce(ours, op=operator)
    dist.all_reduce(theirs, op=operator, group=gloo)
    assert torch.equal(ours, theirs)


def test_all_reduce_average_and_premultiplied() -> None:
    expected = sum(values(9, of=rank) for rank in range(hvd.size()))
    average, scaled = values(9), values(9)
    dist.all_reduce(average, op=dist.ReduceOp.AVG)
    dist.all_reduce(scaled, op=dist._make_nccl_premul_sum(0.5))
    torch.testing.assert_close(average, expected / hvd.size())
    assert torch.equal(scaled, expected * 0.5)


def test_tensors_with_gaps_and_complex_ones(gloo: Any) -> None:
    ours, theirs = values(6, 4).t()[1:], values(6, 4).t().contiguous()[1:]
    dist.all_reduce(ours)
    dist.all_reduce(theirs, group=gloo)
    assert torch.equal(ours, theirs)
    ours = torch.complex(values(5), values(5))
    theirs = ours.clone()
    dist.all_reduce(ours)
    dist.all_reduce(theirs, group=gloo)
    assert torch.equal(ours, theirs)


def test_several_at_once() -> None:
    tensors = [values(3), values(2, 2)]
    dist.all_reduce_coalesced(tensors)
    for tensor in tensors:
        shape = tensor.shape
        assert torch.equal(tensor, sum(values(*shape, of=rank) for rank in range(hvd.size())))
    with dist._coalescing_manager() as together:
        first, second = values(3), values(4)
        dist.all_reduce(first)
        dist.all_reduce(second)
    del together
    assert torch.equal(first, sum(values(3, of=rank) for rank in range(hvd.size())))
    assert torch.equal(second, sum(values(4, of=rank) for rank in range(hvd.size())))
    outputs = [torch.empty(3 * hvd.size()), torch.empty(5 * hvd.size())]
    with dist._coalescing_manager(async_ops=True) as together:
        dist.all_gather_into_tensor(outputs[0], values(3))
        dist.all_gather_into_tensor(outputs[1], values(5))
    together.wait()
    assert torch.equal(outputs[1], torch.cat([values(5, of=rank) for rank in range(hvd.size())]))


def test_coalescing_on_a_device_covers_all_since_its_start() -> None:
    results = [torch.empty(2 * hvd.size()) for _ in range(2)]
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as together:
        dist.all_to_all_single(results[0], torch.full((2 * hvd.size(),), float(hvd.rank())))
        dist.all_to_all_single(results[1], torch.full((2 * hvd.size(),), hvd.rank() + 1.0))
    together.wait()
    ranks = torch.arange(hvd.size(), dtype=torch.float32).repeat_interleave(2)
    assert torch.equal(results[0], ranks)
    assert torch.equal(results[1], ranks + 1)
    dist.barrier()  # the group still works


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float8_e5m2], ids=str)
def test_all_gather(dtype: torch.dtype) -> None:
    expected = [values(3, 2, of=rank).to(dtype) for rank in range(hvd.size())]
    own = values(3, 2).to(dtype)
    lists = [torch.empty(3, 2).to(dtype) for _ in range(hvd.size())]
    dist.all_gather(lists, own)
    chunks = list(torch.empty(3 * hvd.size(), 2).to(dtype).chunk(hvd.size()))
    dist.all_gather(chunks, own)
    single = torch.empty(3 * hvd.size(), 2).to(dtype)
    dist.all_gather_into_tensor(single, own)
    for result in (lists, chunks, list(single.chunk(hvd.size()))):
        for got, wanted in zip(result, expected, strict=True):
            assert torch.equal(got.float(), wanted.float())


def test_all_gather_of_other_sizes() -> None:
    results = [torch.empty(rank + 1, 2) for rank in range(hvd.size())]
    dist.all_gather(results, values(hvd.rank() + 1, 2))
    for rank, result in enumerate(results):
        assert torch.equal(result, values(rank + 1, 2, of=rank))


@pytest.mark.parametrize("op", ["SUM", "MAX"])
def test_reduce_scatter(op: str) -> None:
    size, rank = hvd.size(), hvd.rank()
    inputs = torch.stack([values(size * 3, of=one) for one in range(size)])
    reduced = inputs.sum(0) if op == "SUM" else inputs.amax(0)
    operator = getattr(dist.ReduceOp, op)
    single, lists = torch.empty(3), torch.empty(3)
    dist.reduce_scatter_tensor(single, values(size * 3), op=operator)
    dist.reduce_scatter(lists, list(values(size * 3).chunk(size)), op=operator)
    assert torch.equal(single, reduced[3 * rank :][:3])
    assert torch.equal(lists, single)


def test_reduce_scatter_of_other_sizes() -> None:
    size, rank = hvd.size(), hvd.rank()
    own = torch.empty(rank + 1)
    dist.reduce_scatter(own, [torch.full((one + 1,), float(one)) for one in range(size)])
    assert torch.equal(own, torch.full((rank + 1,), float(rank * size)))


def test_all_to_all() -> None:
    size, rank = hvd.size(), hvd.rank()
    outputs = [torch.empty(one + 1, 2) for one in range(size)]
    dist.all_to_all(outputs, [torch.full((rank + 1, 2), 10.0 * rank + to) for to in range(size)])
    for one, output in enumerate(outputs):
        assert torch.equal(output, torch.full((one + 1, 2), 10.0 * one + rank))
    rows = [one + 1 for one in range(size)]
    result = torch.empty(sum(rows), 2)
    given = torch.full(((rank + 1) * size, 2), float(rank))
    dist.all_to_all_single(result, given, rows, [rank + 1] * size)
    ranks = torch.arange(size, dtype=torch.float32).repeat_interleave(torch.tensor(rows))
    assert torch.equal(result, ranks[:, None].expand(-1, 2))


def test_rooted_operations() -> None:
    size, rank, root = hvd.size(), hvd.rank(), hvd.size() - 1
    tensor = values(4)
    dist.broadcast(tensor, src=root)
    assert torch.equal(tensor, values(4, of=root))
    tensor = values(4)
    dist.reduce(tensor, dst=root)
    expected = sum(values(4, of=one) for one in range(size)) if rank == root else values(4)
    assert torch.equal(tensor, expected)
    gathered = [torch.empty(4) for _ in range(size)] if rank == root else None
    dist.gather(values(4), gathered, dst=root)
    for one, part in enumerate(gathered or []):
        assert torch.equal(part, values(4, of=one))
    parts = [torch.full((2,), float(one)) for one in range(size)] if rank == root else None
    received = torch.empty(2)
    dist.scatter(received, parts, src=root)
    assert torch.equal(received, torch.full((2,), float(rank)))


def test_objects() -> None:
    size, rank = hvd.size(), hvd.rank()
    everything: list[Any] = [None] * size
    dist.all_gather_object(everything, {"rank": rank, "text": "x" * rank})
    assert everything == [{"rank": one, "text": "x" * one} for one in range(size)]
    said = [f"from {rank}", rank]
    dist.broadcast_object_list(said, src=0)
    assert said == ["from 0", 0]
    got: list[Any] = [None]
    dist.scatter_object_list(got, [("for", one) for one in range(size)], src=0)
    assert got == [("for", rank)]
    gathered: list[Any] | None = [None] * size if rank == 0 else None
    dist.gather_object(rank, gathered, dst=0)
    assert gathered in (list(range(size)), None)


def test_async_works_and_futures() -> None:
    size = hvd.size()
    tensors = [torch.full((16,), float(index)) for index in range(40)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for index, work in enumerate(works):
        assert work.wait()
        assert work.is_completed()
        assert work.is_success()
        assert torch.equal(tensors[index], torch.full((16,), float(index * size)))
    tensor = values(5)
    work = dist.all_reduce(tensor, async_op=True)
    doubled = work.get_future().then(lambda done: done.value()[0] * 2)
    assert torch.equal(doubled.wait(), 2 * sum(values(5, of=rank) for rank in range(size)))
    assert work.wait()
    assert work.result()[0] is tensor


def test_a_future_in_a_callback_of_a_future() -> None:
    """Like PowerSGD's hook."""

    def again(done: Any) -> Any:
        return dist.all_reduce(done.value()[0], async_op=True).get_future().wait()[0]

    first = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(again)
    assert torch.equal(first.wait(), torch.full((3,), float(hvd.size() ** 2)))


def test_groups(need_ranks: None) -> None:
    size, rank = hvd.size(), hvd.rank()
    pair = dist.new_group([0, 1])
    twin = dist.new_group([1, 0], timeout=timedelta(seconds=30))
    if rank < 2:
        assert process_set(pair).process_set_id != process_set(twin).process_set_id
        tensor, other = torch.ones(2), torch.full((2,), 5.0)
        # With opposite orders they are different groups.
        groups = [(pair, tensor), (twin, other)][:: 1 if rank else -1]
        works = [dist.all_reduce(one, group=group, async_op=True) for group, one in groups]
        for work in works:
            work.wait()
        assert (tensor.tolist(), other.tolist()) == ([2.0, 2.0], [10.0, 10.0])
        dist.broadcast(tensor, src=1, group=pair)
        hvd_sum = hvd.allreduce(
            torch.ones(1), op=hvd.Sum, process_set=hvd.ProcessSet.from_group(pair)
        )
        assert hvd_sum.item() == 2
        dist.destroy_process_group(pair)
        with pytest.raises(hvd.HorovodInternalError, match="destroyed"):
            pair.allreduce([tensor])
    last = dist.new_group([size - 1], use_local_synchronization=True)
    if rank == size - 1:
        dist.barrier(group=last)
    halves, _ = dist.new_subgroups(1)
    assert dist.get_world_size(halves) == 1
    half = dist.group.WORLD.split_group([0, 1]) if rank < 2 else None
    if half is not None:
        tensor = torch.ones(1)
        half.allreduce([tensor]).wait()
        assert tensor.item() == 2


def test_process_sets_and_groups_are_views_of_each_other(need_ranks: None) -> None:
    size, rank = hvd.size(), hvd.rank()
    assert hvd.global_process_set.to_group() is dist.group.WORLD
    assert hvd.ProcessSet.from_group(dist.group.WORLD).to_group() is dist.group.WORLD
    pair = dist.new_group([0, 1])
    if rank < 2:
        assert hvd.ProcessSet.from_group(pair).to_group() is pair
    # A native horoscale set, with ranks in descending order, and ranks outside of it.
    backwards = hvd.add_process_set([1, 0], members_only=True, ordered=True) if rank < 2 else None
    if backwards is not None and "sort_ranks" in inspect.signature(dist.new_group).parameters:
        group = backwards.to_group(timedelta(seconds=33))
        assert hvd.ProcessSet.from_group(group) is backwards
        assert backwards.to_group() is group
        assert (dist.get_rank(group), group.timeout) == (1 - rank, timedelta(seconds=33))
        total, parts = torch.ones(1), [torch.empty(1), torch.empty(1)]
        dist.all_reduce(total, group=group)
        assert hvd.allreduce(total, op=hvd.Sum, process_set=backwards).item() == 4
        dist.all_gather(parts, torch.tensor([float(rank)]), group=group)
        assert [part.item() for part in parts] == [1, 0]
        dist.broadcast(total, src=1, group=group)
        dist.destroy_process_group(group)
        assert hvd.allreduce(total, op=hvd.Sum, process_set=backwards).item() == 4  # it remains
        assert backwards.to_group() is not group
    if backwards is not None:
        assert hvd.remove_process_set(backwards)
        with pytest.raises(ValueError, match="not registered"):
            backwards.to_group()
    last = hvd.ProcessSet([size - 1])
    last.process_set_id = 7  # like where other ranks have registered it
    if rank < size - 1:
        with pytest.raises(ValueError, match="does not belong"):
            last.to_group()


def test_errors_name_what_is_wrong(need_ranks: None) -> None:
    with pytest.raises(hvd.MismatchError):
        dist.all_reduce(torch.ones(2 + hvd.rank()))
    work = dist.all_reduce(torch.ones(2 + hvd.rank()), async_op=True)
    with pytest.raises(hvd.MismatchError):
        work.wait()
    assert isinstance(work.exception(), hvd.MismatchError)
    work = dist.all_reduce(torch.ones(2 + hvd.rank()), async_op=True)
    with pytest.raises(RuntimeError, match="MismatchError"):
        work.get_future().wait()
    own = torch.ones(2 + hvd.rank())
    gathered = torch.empty(hvd.size() * len(own))
    lists = [torch.empty(2) for _ in range(hvd.size())]
    with pytest.raises(hvd.MismatchError):
        dist.all_gather_into_tensor(gathered, own)
    with pytest.raises(hvd.MismatchError):
        dist.all_gather_into_tensor(gathered, own, async_op=True).wait()
    with pytest.raises(hvd.MismatchError):
        dist.all_gather(lists, own)
    with pytest.raises(ValueError, match="elements"):
        dist.all_gather_into_tensor(torch.empty(1), torch.empty(3))
    with pytest.raises(NotImplementedError):
        dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BAND)
    dist.barrier()


def test_timeouts(need_ranks: None) -> None:
    if hvd.rank() == 0:
        work = dist.all_reduce(torch.ones(2), async_op=True)
        with pytest.raises(GroupTimeoutError, match=r"all_reduce number .* timeout of 0\.02"):
            work.wait(timedelta(milliseconds=20))
        with pytest.raises(GroupTimeoutError, match="Ranks 1"):
            monitored_barrier(timeout=timedelta(milliseconds=50), wait_all_ranks=True)
        dist.send(torch.ones(1), dst=1)
        for rank in range(2, hvd.size()):
            dist.send(torch.ones(1), dst=rank)
        work.wait()
    else:
        dist.recv(torch.ones(1), src=0)
        dist.all_reduce(torch.ones(2))
        with pytest.raises(GroupTimeoutError, match="rank 0"):
            monitored_barrier(timeout=timedelta(milliseconds=50))
    monitored_barrier(timeout=timedelta(seconds=20))
    group = dist.new_group()
    group.set_timeout(timedelta(milliseconds=20))
    if hvd.rank() == 0:  # it is destroyed with this pending, which the others never start
        with pytest.raises(TimeoutError):
            dist.barrier(group=group)
    if hvd.rank() == 0:
        with pytest.raises(GroupTimeoutError):
            monitored_barrier(dist.new_group([0, 1]), timedelta(milliseconds=20))
    elif hvd.rank() == 1:
        dist.new_group([0, 1])
    dist.barrier()


def test_a_monitored_barrier_that_was_given_up_is_none_of_a_later_group(need_ranks: None) -> None:
    if hvd.rank() > 1:
        return
    pair = hvd.add_process_set([0, 1], members_only=True, distinct=True)
    group = pair.to_group()
    soon = timedelta(milliseconds=20)
    if hvd.rank() == 0:
        with pytest.raises(GroupTimeoutError, match="Rank 1"):
            monitored_barrier(group, soon)
        dist.send(torch.ones(1), dst=1)
    else:
        dist.recv(torch.ones(1), src=0)
        with pytest.raises(GroupTimeoutError, match="rank 0"):
            monitored_barrier(group, soon)
    dist.destroy_process_group(group)
    monitored_barrier(pair.to_group(), timedelta(seconds=20))
    dist.destroy_process_group(pair.to_group())
    hvd.barrier(process_set=pair)
    give_up_process_set(pair, abandon=True)  # an abandoned operation is still pending
