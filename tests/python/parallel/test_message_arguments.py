"""Invalid arguments of sends and receives: they raise before anything is sent."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.process_sets import registered

import horoscale.numpy

try:
    import torch

    import horoscale.torch
except ImportError:
    torch = None

BINDINGS = [horoscale.numpy] if torch is None else [horoscale.numpy, horoscale.torch]


@pytest.fixture
def tag(name: str) -> Iterator[int]:
    """A set for this test, which all ranks leave together, so that failures can't affect others."""
    yield zlib.crc32(name.encode()) << 8
    horoscale.numpy.barrier()


@pytest.fixture(params=BINDINGS, ids=lambda hvd: hvd.__name__)
def hvd(request: pytest.FixtureRequest) -> ModuleType:
    return request.param


def full(hvd: ModuleType, value: float) -> Any:
    array = np.full(3, value)
    return array if hvd is horoscale.numpy else torch.from_numpy(array)


def wrong_operations(hvd: ModuleType, tag: int) -> dict[str, tuple[Any, type[Exception], str]]:
    x, me = full(hvd, 1), hvd.rank()
    not_registered = hvd.ProcessSet([0])
    return {
        "dst": (hvd.P2POp(hvd.send, x, hvd.size(), tag), ValueError, "dst="),
        "src": (hvd.P2POp(hvd.recv, x, -1, tag), ValueError, "src=-1"),
        "src of text": (hvd.P2POp(hvd.recv, x, "0", tag), TypeError, "str"),
        "tag": (hvd.P2POp(hvd.send, x, me, -1), ValueError, "tag=-1"),
        "tag of recv_any": (hvd.P2POp(hvd.recv_any, x, tag=2**62), ValueError, "tag="),
        "float tag": (hvd.P2POp(hvd.send, x, me, 1.0), TypeError, "float"),
        "peer of recv_any": (hvd.P2POp(hvd.recv_any, x, 5, tag), ValueError, "peer=5"),
        "no tensor": (hvd.P2POp(hvd.recv, [1.0], me, tag), TypeError, "list"),
        "set": (hvd.P2POp(hvd.send, x, 0, tag, not_registered), ValueError, "not registered"),
        "no set": (hvd.P2POp(hvd.send, x, 0, tag, None), TypeError, "process_set="),
        "type": (
            hvd.P2POp(hvd.send, np.array(["a"]) if hvd is horoscale.numpy else x.to_sparse(), 0),
            ValueError,
            "supported" if hvd is horoscale.numpy else "layout",
        ),
    }


def test_nothing_of_a_batch_is_started_where_one_operation_is_wrong(
    hvd: ModuleType, tag: int
) -> None:
    me = hvd.rank()
    left_over = full(hvd, 0)
    for operation, error, message in wrong_operations(hvd, tag).values():
        with pytest.raises(error, match=message):
            hvd.batch([hvd.P2POp(hvd.recv, left_over, me, tag), operation])
    sent = hvd.send_async(full(hvd, 7), me, tag)
    assert (hvd.recv(full(hvd, 0), me, tag) == 7).all()
    hvd.synchronize(sent)
    assert (left_over == 0).all()


def test_no_rank_is_not_any_rank(hvd: ModuleType, tag: int) -> None:
    x = full(hvd, 1)
    with pytest.raises(TypeError, match="src=None is not a rank: recv_any"):
        hvd.recv(x, None, tag)
    with pytest.raises(TypeError, match="src=None"):
        hvd.recv_async(x, None, tag)
    with pytest.raises(TypeError, match=r"dst=None is not a rank$"):
        hvd.send(x, None, tag)
    with pytest.raises(TypeError, match="src=None"):
        hvd.recv_object(None, tag)
    with pytest.raises(TypeError, match="dst=None"):
        hvd.send_object(1, None, tag)


def test_the_largest_tag(hvd: ModuleType, tag: int) -> None:
    sent = hvd.send_async(full(hvd, 3), hvd.rank(), 2**62 - 1)
    assert (hvd.recv(full(hvd, 0), hvd.rank(), 2**62 - 1) == 3).all()
    hvd.synchronize(sent)
    for wrong in (2**62, 2**64):
        with pytest.raises(ValueError, match="tag="):
            hvd.send(full(hvd, 3), hvd.rank(), wrong)
    with pytest.raises(TypeError, match="float"):
        hvd.recv(full(hvd, 3), hvd.rank(), 1.5)


def test_an_error_names_the_set_and_few_ranks(hvd: ModuleType, need_ranks: None) -> None:
    everyone = f"ranks 0-{hvd.size() - 1}"
    with pytest.raises(ValueError, match=rf"^dst=99 is not in process set 0 \({everyone}\)$"):
        hvd.send(full(hvd, 1), 99)
    with registered([hvd.size() - 1]) as last:
        if last.included():
            expected = rf"process set {last.process_set_id} \(rank {hvd.size() - 1}\)$"
            with pytest.raises(ValueError, match=f"^src=0 is not in {expected}"):
                hvd.recv(full(hvd, 1), 0, 0, last)
            with pytest.raises(ValueError, match=f"^root_rank=0 is not in {expected}"):
                hvd.broadcast(full(hvd, 1), 0, process_set=last)


def test_a_foreign_byte_order(tag: int) -> None:
    hvd = horoscale.numpy
    swapped = np.zeros(3, np.dtype(np.float64).newbyteorder())
    for call in (hvd.send, hvd.recv):
        with pytest.raises(ValueError, match="byte order"):
            call(swapped, hvd.rank(), tag)


@pytest.mark.skipif(torch is None, reason="needs PyTorch")
def test_a_tensor_whose_elements_share_memory(tag: int) -> None:
    """It is read-only: the message would be lost."""
    hvd = horoscale.torch
    sent = hvd.send_async(torch.ones(3), hvd.rank(), tag)
    for call in (hvd.recv, hvd.recv_async):
        with pytest.raises(ValueError, match="share memory"):
            call(torch.zeros(1).expand(3), hvd.rank(), tag)
    assert hvd.recv(torch.zeros(3, 1).expand(3, 1), hvd.rank(), tag).sum() == 3
    hvd.synchronize(sent)


def test_a_size_may_be_any_integer(hvd: ModuleType, tag: int) -> None:
    sizes = [3, np.int64(3), np.array(3)]
    if hvd is not horoscale.numpy:
        sizes.append(torch.tensor(3))
    dtype = full(hvd, 0).dtype
    for size in sizes:
        assert hvd.empty_shared(size).shape == (3,)
        assert hvd.empty_shared((2, size)).shape == (2, 3)
        sent = hvd.send_async(full(hvd, 5), hvd.rank(), tag)
        with hvd.recv_view(size, dtype, hvd.rank(), tag) as view:
            assert view.shape == (3,)
        hvd.synchronize(sent)
    for wrong in (3.0, (3, 1.5), "3"):
        with pytest.raises(TypeError):
            hvd.empty_shared(wrong)
        with pytest.raises(TypeError):
            hvd.recv_view(wrong, dtype, hvd.rank(), tag)


def test_an_error_of_out_names_the_operation(hvd: ModuleType, name: str) -> None:
    wrong = full(hvd, 0).reshape(1, 3)
    tensor = full(hvd, 0)[:1] if hvd.size() > 3 else full(hvd, 0)[: hvd.size()]
    for function in ("allgather", "reducescatter"):
        for suffix in ("", "_async"):
            with pytest.raises(ValueError, match=f'{function} "x" on process set 0'):
                getattr(hvd, function + suffix)(tensor, name="x", out=wrong)
    with pytest.raises((TypeError, ValueError), match="allgather on process set 0"):
        hvd.allgather(tensor, out=[1])
