"""One rank's checks of horoscale.torch on a device, "cuda" or "cpu". Prints one line of JSON."""

from __future__ import annotations

import json
import sys

import pytest
import torch

import horoscale.torch as hvd

hvd.init()
rank, size = hvd.rank(), hvd.size()
on_gpu = sys.argv[1] == "cuda"
device = torch.device("cuda", rank % torch.cuda.device_count()) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
TOTAL = sum(range(size))


def full(shape: int | tuple[int, ...], value: float, dtype: torch.dtype = torch.float32):
    return torch.full((shape,) if isinstance(shape, int) else shape, value, dtype=dtype).to(device)


def reductions() -> None:
    """Sums of all floating-point types, scaled and averaged, alone, in groups and in 16 bits."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        data = full(1000, rank, dtype)
        assert (hvd.allreduce(data, op=hvd.Sum) == TOTAL).all()
        scaled = hvd.allreduce(data, op=hvd.Average, prescale_factor=2 * size)
        assert (scaled == 2 * TOTAL).all()
        several = [full(n, rank, dtype) for n in (1, 3, 5)]
        assert all((one == TOTAL).all() for one in hvd.grouped_allreduce(several, op=hvd.Sum))
    data = full(1000, rank)
    assert (hvd.allreduce(data, op=hvd.Max) == size - 1).all()  # through the host
    half = hvd.allreduce(data, op=hvd.Sum, compression=hvd.Compression.fp16)
    assert half.dtype == torch.float32
    assert (half == TOTAL).all()
    rows = hvd.reducescatter(full((2 * size + 1, 2), rank), op=hvd.Sum)
    assert rows.shape == (2 + (rank == 0), 2)
    assert (rows == TOTAL).all()


def movements() -> None:
    """Rows and splits of different sizes, and a broadcast."""
    gathered = hvd.allgather(full((rank + 1, 2), rank))
    assert gathered[:, 0].tolist() == [r for r in range(size) for _ in range(r + 1)]
    splits = torch.arange(1, size + 1, dtype=torch.int32)
    received, counts = hvd.alltoall(full(int(splits.sum()), rank), splits)
    assert counts.tolist() == [rank + 1] * size
    assert received.tolist() == [r for r in range(size) for _ in range(rank + 1)]
    assert (hvd.broadcast(full(100, rank), root_rank=size - 1) == size - 1).all()
    for one in (gathered, received):
        assert one.device == device


def streams() -> None:
    """Inputs wait for another stream's work, and that stream's next reads wait for the result."""
    stream = torch.cuda.Stream(device) if on_gpu else None
    with torch.cuda.stream(stream):
        for _ in range(20):
            data = full((512, 512), 1.0)
            for _ in range(8):
                data = data @ data / 512
            handle = hvd.allreduce_async_(data, op=hvd.Sum, name="on a stream")
            assert (hvd.synchronize(handle) == size).all().item()


def places() -> None:
    """CPU and GPU tensors in one step; on several process sets if there are enough ranks."""
    handles = [
        hvd.allreduce_async(one, op=hvd.Sum, name=f"place.{index}")
        for index, one in enumerate([full(10, rank), torch.full((10,), rank), full(10, rank)])
    ]
    assert all((hvd.synchronize(handle) == TOTAL).all() for handle in handles)


def messages() -> None:
    """To the next rank, which may be this one: all sizes, between CPU and GPU, and gradients."""
    following, before = (rank + 1) % size, (rank - 1) % size
    for count in (0, 1, 4097, 1 << 20):
        out = full(count, rank)
        received = full(count, -1)
        hvd.batch([hvd.P2POp(hvd.send, out, following), hvd.P2POp(hvd.recv, received, before)])
        assert (received == before).all()
    send = hvd.send_async(torch.full((10_000,), float(rank)), following, tag=1)
    received = full(10_000, -1)
    assert hvd.recv_any(received, tag=1) == before
    assert (received == before).all()
    hvd.synchronize(send)
    send = hvd.send_async(full(10_000, rank), following, tag=2)
    assert (hvd.recv(torch.zeros(10_000), before, tag=2) == before).all()
    hvd.synchronize(send)
    # It sends the result of another stream's work, whose later work sees the received data.
    stream = torch.cuda.Stream(device) if on_gpu else None
    with torch.cuda.stream(stream):
        for _ in range(20):
            data = full((512, 512), 1.0)
            for _ in range(8):
                data = data @ data / 512
            send = hvd.send_async(data * (rank + 1), following)
            received = torch.zeros_like(data)
            assert (hvd.recv(received, before) * 2 == 2 * before + 2).all().item()
            hvd.synchronize(send)
    # A small send does not wait for its receive, so that one thread can do both.
    weights = full(100, 2.0).requires_grad_()
    sent = hvd.send(weights * 3, following, tag=3)
    received = hvd.recv(full(100, 0.0).requires_grad_(), before, tag=3)
    assert (received == 6).all()
    ((received * (rank + 1)).sum() + sent).backward()
    assert (weights.grad == 3 * (following + 1)).all()
    assert sent.device == weights.grad.device == device


def training() -> None:
    """Hooks reduce gradients: the average is the gradient over all ranks' batches."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3))).to(device)
    reference = [one.detach().clone() for one in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    inputs = torch.randn(size, 4, 8).to(device)
    model(inputs[rank]).sum().backward()
    optimizer.step()
    stepped = [one.detach().clone() for one in model.parameters()]
    with torch.no_grad():
        for one, before in zip(model.parameters(), reference, strict=True):
            one.copy_(before)
    expected = torch.autograd.grad(model(inputs.flatten(0, 1)).sum() / size, model.parameters())
    for one, before, gradient in zip(stepped, reference, expected, strict=True):
        torch.testing.assert_close(one, before - gradient, rtol=1e-4, atol=1e-4)


def capture() -> None:
    """Collectives raise while a graph is being captured."""
    data = full(10, 1.0)
    hvd.allreduce(data)
    with (
        torch.cuda.graph(torch.cuda.CUDAGraph()),
        pytest.raises(ValueError, match="CUDA graph"),
    ):
        hvd.allreduce_(data)


def leaving() -> None:
    """Ranks join one after the other; averages are over the remaining ones."""
    for _ in range(size - rank):
        hvd.allreduce(full(10, 1.0), name="left")
    hvd.join(device.index if on_gpu else -1)


parts = [reductions, movements, streams, places, messages, training, leaving]
if on_gpu:
    parts.insert(-1, capture)
for part in parts:
    part()
metrics = hvd.metrics()["process_sets"]["0"]
print(json.dumps({key: metrics[key] for key in ("device_buckets", "nccl_buckets")}), flush=True)
hvd.shutdown()
