"""What one rank does; its arguments choose. Prints one line of JSON.

Numpy's arrays pose as CUDA tensors of the device with this rank's number.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

import numpy as np

from horoscale._core import (
    DataType,
    Device,
    DeviceBuffer,
    HorovodInternalError,
    OpKind,
    ReduceOp,
    Runtime,
    TensorArg,
    build_info,
)

runtime = Runtime.init()
rank, size = runtime.topology.rank, runtime.topology.size
device = Device(rank, 0)


def argument(source: np.ndarray, target: np.ndarray | None) -> TensorArg:
    """Describe arrays."""
    out = 0 if target is None else target.ctypes.data
    return TensorArg(source.ctypes.data, out, DataType.FLOAT32, source.shape)


def start(kind: OpKind, source: np.ndarray, target: np.ndarray | None, **request: object):
    """Enqueue an operation on this rank's device."""
    return runtime.enqueue(
        kind,
        tensors=[argument(source, target)],
        keep_alive=(source, target),
        device=device,
        **request,
    )


def values(buffer: DeviceBuffer) -> list[float]:
    """Read memory of a device, which is the host's here."""
    floats = ctypes.cast(buffer.pointer, ctypes.POINTER(ctypes.c_float))
    return [floats[i] for i in range(buffer.nbytes // 4)]


def collectives() -> dict[str, object]:
    """One of each, and what the double and the counters say of them."""
    said: dict[str, object] = {}
    data = np.full(1000, rank + 1, np.float32)
    for _ in range(3):  # found in the cache from the second on
        result = np.empty_like(data)
        handle = start(OpKind.ALLREDUCE, data, result, name="sum", reduce_op=ReduceOp.AVERAGE)
        handle.wait_on_stream(0)
        handle.wait()
    said["average"] = [float(result.min()), float(result.max())]
    rows = np.full((rank + 1, 2), rank, np.float32)
    gather = start(OpKind.ALLGATHER, rows, None, name="rows")
    gather.wait_on_stream(0)
    gather.wait()  # the host reads: it has to wait too
    said["rows"] = gather.output_rows(0, size)
    said["gathered"] = values(gather.device_output(0))
    exchange = start(
        OpKind.ALLTOALL, np.arange(size, dtype=np.float32), None, name="all", splits=[1] * size
    )
    exchange.wait()
    said["exchanged"] = values(exchange.device_output(0))
    metrics = runtime.metrics()["process_sets"]["0"]
    said["device_buckets"] = metrics["device_buckets"]
    said["nccl_buckets"] = metrics["nccl_buckets"]
    return said


def survive() -> dict[str, object]:
    """The last rank is killed while the others' kernels wait for it."""
    double = ctypes.CDLL(os.environ["HOROSCALE_LIBNCCL"])
    data = np.ones(1000, np.float32)
    start(OpKind.ALLREDUCE, data, data, name="before").wait()
    if rank == size - 1:
        double.double_hold(rank, 1)
    handle = start(OpKind.ALLREDUCE, data, data, name="last")
    handle.wait_on_stream(0)
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        handle.wait()
    except HorovodInternalError as error:
        return {"error": type(error).__name__, "ranks": getattr(error, "ranks", None)}
    return {"error": None}


def build() -> dict[str, object]:
    """What was found."""
    return dict(build_info()["backends"]["nccl"])


print(json.dumps({"collectives": collectives, "survive": survive, "build": build}[sys.argv[1]]()))
sys.stdout.flush()
runtime.shutdown()
