"""send and recv of tensors, and their gradients."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest
import torch

import horoscale.torch as hvd

DTYPES = (
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex64, torch.complex128),
)


@pytest.fixture
def tag(name: str) -> Iterator[int]:
    """A set for this test, which all ranks leave together, so that failures can't affect others."""
    yield zlib.crc32(name.encode()) << 8
    hvd.barrier()


def values(n: int, rank: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return (torch.rand(n, generator=generator) * 100).to(dtype)


@pytest.mark.conformance
@pytest.mark.parametrize("n", [0, 3, 70_001])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_types(dtype: torch.dtype, n: int, tag: int) -> None:
    after, before = (hvd.rank() + 1) % hvd.size(), (hvd.rank() - 1) % hvd.size()
    into = torch.zeros(n, dtype=dtype)
    _, result = hvd.batch(
        [
            hvd.P2POp(hvd.send, values(n, hvd.rank(), dtype), after, tag),
            hvd.P2POp(hvd.recv, into, before, tag),
        ]
    )
    assert result is into
    assert torch.equal(result, values(n, before, dtype))


@pytest.mark.usefixtures("need_ranks")
def test_strided_tensors(tag: int) -> None:
    if hvd.rank() == 0:
        hvd.send(torch.arange(12.0).view(3, 4).t(), 1, tag)
    elif hvd.rank() == 1:
        into = torch.zeros(4, 6)
        result = hvd.recv(into[:, ::2], 0, tag)
        assert torch.equal(result, torch.arange(12.0).view(3, 4).t())
        assert torch.equal(into[:, 1::2], torch.zeros(4, 3))


@pytest.mark.usefixtures("need_ranks")
def test_of_any_rank(tag: int) -> None:
    if hvd.rank() != 0:
        hvd.send(torch.full((1000,), hvd.rank()), 0, tag)
        return
    sources = []
    for step in range(hvd.size() - 1):
        into = torch.zeros(1000, dtype=torch.int64)
        if step % 2:
            sources.append(hvd.recv_any(into, tag))
        else:
            sources.append(hvd.synchronize(hvd.recv_any_async(into, tag)))
        assert (into == sources[-1]).all()
    assert sorted(sources) == list(range(1, hvd.size()))


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float64], ids=str)
def test_views(dtype: torch.dtype, tag: int) -> None:
    after, before = (hvd.rank() + 1) % hvd.size(), (hvd.rank() - 1) % hvd.size()
    out = hvd.empty_shared(300, 100, dtype=dtype)
    for step in range(3):
        out.view(-1)[:] = values(30_000, hvd.rank() + step, dtype)
        sent = hvd.send_async(out, after, tag)
        with hvd.recv_view((100, 300), dtype, before, tag) as tensor:
            assert tensor.shape == (100, 300)
            assert torch.equal(tensor.flatten(), values(30_000, before + step, dtype))
        hvd.synchronize(sent)


@pytest.mark.usefixtures("need_ranks")
@pytest.mark.parametrize("n", [5, 50_000])
def test_gradients_go_back(n: int, tag: int) -> None:
    """f(x) on rank 0, g of that on rank 1: the gradient of x is that of g(f(x))."""
    start = values(n, 7, torch.float64)
    x = start.clone().requires_grad_()
    (x * 3).square().sum().backward()
    expected = x.grad
    if hvd.rank() == 0:
        x = start.clone().requires_grad_()
        hvd.send(x * 3, 1, tag).backward()
        assert torch.equal(x.grad, expected)
    elif hvd.rank() == 1:
        received = hvd.recv(torch.empty(n, dtype=torch.float64, requires_grad=True), 0, tag)
        assert received.requires_grad
        received.square().sum().backward()


@pytest.mark.usefixtures("need_ranks")
def test_gradients_of_ranks_that_send_to_each_other(tag: int) -> None:
    n = 100_000
    if hvd.rank() > 1:
        return
    peer = 1 - hvd.rank()
    x = values(n, hvd.rank(), torch.float64).requires_grad_()
    buffer = torch.empty(n, dtype=torch.float64, requires_grad=True)
    if hvd.rank() == 0:
        token = hvd.send(x, peer, tag)
        received = hvd.recv(buffer, peer, tag)
    else:
        received = hvd.recv(buffer, peer, tag)
        token = hvd.send(x, peer, tag)
    ((received * (hvd.rank() + 2)).sum() + token).backward()
    assert torch.equal(x.grad, torch.full((n,), 3.0 - hvd.rank(), dtype=torch.float64))


def test_what_needs_no_gradient_is_not_recorded(tag: int) -> None:
    into = torch.empty(3)
    handle = hvd.recv_async(into, hvd.rank(), tag)
    assert not hvd.send(torch.ones(3), hvd.rank(), tag).requires_grad
    assert hvd.synchronize(handle) is into
    handle = hvd.send_async(torch.ones(3, requires_grad=True), hvd.rank(), tag)
    with torch.no_grad():
        buffer = torch.empty(3, requires_grad=True)
        result = hvd.recv(buffer, hvd.rank(), tag)
    assert result is buffer
    assert hvd.synchronize(handle) is None


@pytest.mark.usefixtures("need_ranks")
def test_a_mismatch(tag: int) -> None:
    if hvd.rank() == 0:
        with pytest.raises(hvd.MismatchError, match="int64"):
            hvd.send(torch.zeros(50_000, dtype=torch.int64), 1, tag)
    elif hvd.rank() == 1:
        with pytest.raises(hvd.MismatchError, match="float32"):
            hvd.recv(torch.zeros(50_000), 0, tag)


def test_objects(tag: int) -> None:
    if hvd.size() > 1 and hvd.rank() == 0:
        hvd.send_object({"weights": torch.arange(10_000)}, 1, tag)
    elif hvd.rank() == 1:
        assert torch.equal(hvd.recv_object(0, tag)["weights"], torch.arange(10_000))


def test_wrong_arguments(tag: int) -> None:
    with pytest.raises(ValueError, match="dst="):
        hvd.send(torch.zeros(3), hvd.size(), tag)
    with pytest.raises(TypeError, match=r"torch\.Tensor"):
        hvd.recv([1.0], 0, tag)
    with pytest.raises(ValueError, match=r"torch\.Tensor"):
        hvd.send([1.0], 0, tag)
    with pytest.raises(ValueError, match="layout"):
        hvd.send(torch.eye(3).to_sparse(), 0, tag)
