"""torch.distributed operations on simulated CUDA tensors, without a GPU.

One rank's actions; prints one line of JSON. CPU tensors stand in for tensors on the device with
this rank's number.
"""

from __future__ import annotations

import ctypes
import json
from typing import Any

import torch
import torch.distributed as dist

import horoscale.torch as hvd
from horoscale import _core
from horoscale.torch import tensors
from horoscale.torch.distributed import collectives, devices, messages, places, prepared

waits: list[int] = []
posing = True
wait_on_stream = _core.Handle.wait_on_stream


def wait_for_device(handle: _core.Handle, stream: int, timeout: float | None = None) -> None:
    """Do what a stream that reads the tensor would: here the host reads it."""
    waits.append(stream)
    wait_on_stream(handle, stream, timeout)
    handle.wait(timeout)


def adopt(buffer: Any, device: object, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a copy of the tensor that the library has allocated on the device."""
    content = bytearray(ctypes.string_at(buffer.pointer, buffer.nbytes))
    return torch.frombuffer(content, dtype=dtype).view(shape)


def device_of(_: object) -> _core.Device | None:
    """Return the rank's device, and the driver's handle of its default stream."""
    return _core.Device(dist.get_rank(), 0) if posing else None


collectives.device_of = messages.device_of = device_of  # type: ignore[assignment]
prepared.is_plain = messages.is_plain = lambda one: not posing and tensors.is_plain(one)
places.on_host = lambda _: not posing
places.adopt_on_device = adopt  # type: ignore[assignment]
devices.current_stream = lambda _: 0
devices.mark = lambda _: None
devices.future_of = lambda _: torch.futures.Future()
_core.Handle.wait_on_stream = wait_for_device  # type: ignore[method-assign]

dist.init_process_group("cpu:horoscale,cuda:horoscale", init_method="horoscale://")
rank, size = dist.get_rank(), dist.get_world_size()
operations = 0


def full(value: float, *shape: int) -> torch.Tensor:
    return torch.full(shape or (5000,), float(value))


def expect(tensor: torch.Tensor, values: list[float]) -> None:
    """Check that the tensor consists of equal parts with these values."""
    global operations
    operations += 1
    for part, value in zip(tensor.reshape(len(values), -1), values, strict=True):
        assert (part == value).all(), (part, value)


ranks = [float(one) for one in range(size)]
total = sum(ranks)

value = full(rank)
dist.all_reduce(value)
expect(value, [total])
strided = full(rank, 3000, 2)
work = dist.all_reduce(strided[:, 0], async_op=True)
assert work.get_future().wait() is not None
expect(strided[:, 0], [total])
expect(strided[:, 1], [rank])
value = full(rank)
dist.broadcast(value, size - 1)
expect(value, [size - 1])
whole = full(-1, size, 5000)
dist.all_gather_into_tensor(whole, full(rank))
expect(whole, ranks)
apart = [full(-1) for _ in ranks]
dist.all_gather(apart, full(rank))
expect(torch.stack(apart), ranks)
part = full(-1)
dist.reduce_scatter_tensor(part, full(rank, size, 5000))
expect(part, [total])
swapped = full(-1, size, 5000)
dist.all_to_all_single(swapped, full(rank, size, 5000))
expect(swapped, ranks)
lists = [full(-1) for _ in ranks] if rank == 0 else None
dist.gather(full(rank), lists)
if lists is not None:
    expect(torch.stack(lists), ranks)
part = full(-1)
dist.scatter(part, [full(one) for one in ranks] if rank == 0 else None)
expect(part, [rank])
value = full(rank)
dist.reduce(value, 1)
if rank == 1:
    expect(value, [total])
following, before = (rank + 1) % size, (rank - 1) % size
into = full(-1)
sends = dist.batch_isend_irecv(
    [dist.P2POp(dist.isend, full(rank), following), dist.P2POp(dist.irecv, into, before)]
)
for work in sends:
    work.wait()
expect(into, [before])
if rank == 0:
    dist.send(full(7), 1)
if rank == 1:
    dist.recv(into, 0)
    expect(into, [7])
posing = False
on_host = torch.ones(3)
dist.all_reduce(on_host)
assert (on_host == size).all()

buckets = sum(one["nccl_buckets"] for one in hvd.metrics()["process_sets"].values())
print(json.dumps({"waits": len(waits), "operations": operations // 2, "nccl_buckets": buckets}))
dist.destroy_process_group()
