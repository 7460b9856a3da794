"""Sends and receives over the backend of torch.distributed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import horoscale.torch as hvd
from horoscale.torch.distributed import GroupTimeoutError, messages


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("horoscale", init_method="horoscale://")
    yield
    dist.destroy_process_group()


def test_messages(need_ranks: None) -> None:
    size, rank = hvd.size(), hvd.rank()
    right, left = (rank + 1) % size, (rank - 1) % size
    for count in (0, 5, 200_000):
        received = torch.empty(count)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, torch.full((count,), float(rank)), right),
                dist.P2POp(dist.irecv, received, left),
            ]
        )
        for work in works:
            work.wait()
        assert torch.equal(received, torch.full((count,), float(left)))
    if rank == 0:
        for tag in (2, 1):
            dist.send(torch.tensor([tag]), dst=1, tag=tag)
    elif rank == 1:
        got = torch.zeros(2, dtype=torch.int64)
        for tag in (1, 2):
            assert dist.recv(got[tag - 1 : tag], src=0, tag=tag) == 0
        assert got.tolist() == [1, 2]
    if rank == 0:
        senders = set()
        for _ in range(size - 1):
            got = torch.zeros(1, dtype=torch.int64)
            source = dist.recv(got, tag=7)
            assert got.item() == source
            senders.add(source)
        assert senders == set(range(1, size))
    else:
        dist.send(torch.tensor([rank]), dst=0, tag=7)
    dist.barrier()


def exchange(given: torch.Tensor, received: torch.Tensor) -> None:
    """A blocking send from rank 0 to rank 1; the others do nothing."""
    if hvd.rank() == 0:
        dist.send(given, dst=1)
    elif hvd.rank() == 1:
        assert dist.recv(received, src=0) == 0
    dist.barrier()


@pytest.mark.parametrize("count", [0, 6, 200_000])
def test_memory_of_any_kind(need_ranks: None, count: int) -> None:
    given = torch.arange(float(count)).view(-1, 2)
    received = torch.zeros(2, count // 2).t()  # with gaps
    exchange(given.t().contiguous().t(), received)
    parameter = torch.nn.Parameter(torch.zeros(count // 2, 2))
    exchange(given, parameter)
    small = torch.zeros(count).to(torch.float8_e4m3fn)  # sent as bytes
    exchange(torch.ones(count).to(small.dtype), small)
    if hvd.rank() == 1:
        assert torch.equal(received, given)
        assert torch.equal(parameter, given)
        assert torch.equal(small.float(), torch.ones(count))


def test_the_same_message_with_other_memory(need_ranks: None) -> None:
    """The state prepared for the first call is reused for all."""
    for number in range(5):
        received = torch.zeros(3)
        exchange(torch.full((3,), float(number)), received)
        if hvd.rank() == 1:
            assert received.tolist() == [number] * 3


def test_who_waits_is_known(need_ranks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """dist.send() and dist.recv() are one library call; isend() and irecv() start a message.

    So do the group's own methods, because callers may use their results freely.
    """
    started: list[bool] = []
    start = messages.start

    def noted(*arguments: Any) -> Any:
        started.append(arguments[-1])
        return start(*arguments)

    monkeypatch.setattr(messages, "start", noted)
    tensor = torch.ones(2)
    if hvd.rank() == 0:
        dist.send(tensor, dst=1)
        assert started == []
        dist.isend(tensor, dst=1).wait()
        dist.group.WORLD.send([tensor], 1).wait()
    elif hvd.rank() == 1:
        dist.recv(tensor, src=0)
        assert started == []
        assert dist.irecv(tensor, src=0).wait()
        work = dist.group.WORLD.recv([tensor], 0)
        assert work.wait()
        assert work.result()[0] is tensor
    assert started == ([False, False] if hvd.rank() < 2 else [])
    dist.barrier()


def test_calls_that_wait_see_what_fails(need_ranks: None) -> None:
    """A message run by one call raises the same errors as a started one, and stays pending."""
    group = dist.new_group([0, 1], timeout=timedelta(milliseconds=20))
    if hvd.rank() == 0:
        with pytest.raises(GroupTimeoutError, match=r"send to rank 1 of ranks .* of 0\.02 s"):
            dist.send(torch.arange(1 << 20), dst=1, group=group)
    elif hvd.rank() == 1:
        assert dist.recv(got := torch.zeros(3, dtype=torch.int64), src=0) == 0
        assert got.tolist() == [1, 2, 3]
    if hvd.rank() == 0:
        dist.send(torch.tensor([1, 2, 3]), dst=1)
    dist.barrier()


def test_work_of_a_receive_knows_its_source(need_ranks: None) -> None:
    tensor = torch.ones(2)
    if hvd.rank() == 0:
        work = dist.isend(tensor, dst=1)
        work.wait()
        with pytest.raises(RuntimeError, match="no receive"):
            work.source_rank()
        dist.send(tensor, dst=1)
    elif hvd.rank() == 1:
        for start in (lambda: dist.irecv(tensor, src=0), lambda: dist.irecv(tensor)):
            work = start()
            work.wait()
            assert work.source_rank() == work._source_rank() == 0
            assert work.result()[0] is tensor
    dist.barrier()


def test_errors(need_ranks: None) -> None:
    with pytest.raises(ValueError, match="negative"):
        dist.send(torch.ones(1), dst=(hvd.rank() + 1) % hvd.size(), tag=-1)
    if hvd.rank() == 0:
        dist.send(torch.ones(2), dst=1)
    elif hvd.rank() == 1:
        with pytest.raises(hvd.MismatchError):
            dist.recv(torch.ones(3), src=0)
    group = dist.new_group(timeout=timedelta(milliseconds=20))
    if hvd.rank() == 1:
        with pytest.raises(GroupTimeoutError, match=r"recv from rank 0 of ranks .* of 0\.02"):
            dist.recv(torch.ones(1), src=0, group=group)
        with pytest.raises(GroupTimeoutError, match="recv from any rank"):
            dist.recv(torch.ones(1), group=group)
    dist.barrier()
    dist.destroy_process_group(group)
