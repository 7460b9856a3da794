"""Messages of horoscale.torch with simulated CUDA tensors, without a GPU.

One rank's actions; prints one line of JSON. CPU tensors stand in for tensors on the device with
this rank's number.
"""

from __future__ import annotations

import json
import sys

import torch

import horoscale.torch as hvd
from horoscale import _core
from horoscale.torch import handles, messages

hvd.init()
rank, size = hvd.rank(), hvd.size()
following, before = (rank + 1) % size, (rank - 1) % size
waits: list[int] = []
wait_on_stream = _core.Handle.wait_on_stream


def wait_for_device(handle: _core.Handle, stream: int) -> None:
    """Do what a stream that reads the tensor would: here the host reads it."""
    waits.append(stream)
    wait_on_stream(handle, stream)
    handle.wait()


# The default stream, as the driver calls it.
messages.device_of = lambda _: _core.Device(rank, 0)  # type: ignore[assignment]
messages.is_plain = lambda _: False  # like device tensors
handles.current_stream = lambda _: 0
_core.Handle.wait_on_stream = wait_for_device  # type: ignore[method-assign]


def full(count: int, value: float) -> torch.Tensor:
    return torch.full((count,), float(value))


def blocking() -> None:
    """Rank 0 begins; includes strided tensors."""
    data = full(10_000, rank)
    if rank == 0:
        assert hvd.send(data, following).shape == ()
    into = torch.zeros(10_000, 2)
    assert hvd.recv(into[:, 0], before).data_ptr() == into.data_ptr()
    assert (into[:, 0] == before).all()
    assert (into[:, 1] == 0).all()
    if rank != 0:
        hvd.send(data, following)


def started() -> None:
    """Batches and handles, receives from any rank, and errors."""
    into = full(10_000, -1)
    sent, received, source = hvd.batch(
        [
            hvd.P2POp(hvd.send, full(10_000, rank), following, 1),
            hvd.P2POp(hvd.recv, into, before, 1),
            hvd.P2POp(hvd.recv_any, wanted := full(3, -1), tag=2),
        ]
        if rank == 0
        else [
            hvd.P2POp(hvd.send, full(10_000, rank), following, 1),
            hvd.P2POp(hvd.recv, into, before, 1),
            hvd.P2POp(hvd.send, wanted := full(3, rank), 0, 2),
        ]
    )
    assert sent is None
    assert received is into
    assert (into == before).all()
    others = [source] if rank == 0 else []
    while rank == 0 and len(others) < size - 1:
        handle = hvd.recv_any_async(wanted, tag=2)
        others.append(hvd.synchronize(handle))
        assert hvd.poll(handle)
    if rank == 0:
        assert sorted(others) == list(range(1, size))
    send = hvd.send_async(full(10_000, 0), following, tag=3)
    try:
        hvd.recv(full(9_000, 0), before, tag=3)
    except hvd.MismatchError:
        pass
    else:
        raise AssertionError("a message of another length was received")
    try:
        hvd.synchronize(send)
    except hvd.MismatchError:
        pass
    else:
        raise AssertionError("a message of another length was sent")


def gradients() -> None:
    """Through all ranks and back."""
    weights = full(10_000, 2).requires_grad_()
    value = weights * 3
    if rank > 0:
        value = hvd.recv(full(10_000, 0).requires_grad_(), before) * 5
    if rank < size - 1:
        hvd.send(value, following).backward()
    else:
        (value * 7).sum().backward()
    if rank == 0:
        assert (weights.grad == 3 * 5 ** (size - 1) * 7).all()


for part in (blocking, started, gradients):
    part()
    hvd.barrier()
print(json.dumps({"waits": len(waits), "streams": sorted(set(waits))}))
sys.stdout.flush()
hvd.shutdown()
