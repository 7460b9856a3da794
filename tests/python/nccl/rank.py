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


def argument(source: np.ndarray, target: np.ndarray | None, dtype: DataType) -> TensorArg:
    """Describe arrays."""
    out = 0 if target is None else target.ctypes.data
    return TensorArg(source.ctypes.data, out, dtype, source.shape)


def start(
    kind: OpKind,
    source: np.ndarray,
    target: np.ndarray | None,
    dtype: DataType = DataType.FLOAT32,
    **request: object,
):
    """Enqueue an operation on this rank's device."""
    return runtime.enqueue(
        kind,
        tensors=[argument(source, target, dtype)],
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


def made(values_of: object, dtype: DataType) -> np.ndarray:
    """Small numbers as elements of a type; those of bfloat16 are the upper halves of float32's."""
    if dtype is DataType.BFLOAT16:
        return (np.asarray(values_of, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.asarray(values_of).astype(dtype.name.lower())


def read(array: np.ndarray, dtype: DataType) -> list[float]:
    """The numbers of made()."""
    if dtype is DataType.BFLOAT16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return [complex(x).real for x in array.ravel()]


def one_type(dtype: DataType) -> dict[str, object]:
    """Each operation on elements of one type, and how many of its buckets NCCL ran."""
    before = runtime.metrics()["process_sets"]["0"]["nccl_buckets"]
    name, said = dtype.name, dict[str, object]()

    def reduce(op: ReduceOp, **scale: float) -> list[float]:
        data = made([rank + 1.0, 2.0, 0.0], dtype)
        label = f"{name}.{op.name}.{scale}"
        start(OpKind.ALLREDUCE, data, data, dtype, name=label, reduce_op=op, **scale).wait()
        return read(data, dtype)

    said["sum"] = reduce(ReduceOp.SUM)
    said["average"] = reduce(ReduceOp.AVERAGE)
    said["scaled"] = reduce(ReduceOp.AVERAGE, prescale=4.0, postscale=0.5)
    said["product"] = reduce(ReduceOp.PRODUCT)
    rows = made([[row, row] for row in range(2 * size + 1)], dtype)
    own = made(np.zeros((2 + (rank == 0), 2)), dtype)
    start(OpKind.REDUCESCATTER, rows, own, dtype, name=f"{name}.scatter").wait()
    said["scattered"] = read(own, dtype)
    data = made([rank, rank], dtype)
    start(OpKind.BROADCAST, data, data, dtype, name=f"{name}.broadcast", root=1).wait()
    said["broadcast"] = read(data, dtype)
    group = [made([rank, i], dtype) for i in range(3)]
    runtime.enqueue(
        OpKind.ALLREDUCE,
        tensors=[argument(data, data, dtype) for data in group],
        name=f"{name}.group",
        keep_alive=group,
        device=device,
    ).wait()
    said["group"] = [read(data, dtype) for data in group]
    after = runtime.metrics()["process_sets"]["0"]["nccl_buckets"]
    return said | {"nccl_buckets": after - before}


TYPES = [
    *(DataType.FLOAT16, DataType.BFLOAT16, DataType.FLOAT32, DataType.FLOAT64),
    *(DataType.INT8, DataType.UINT8, DataType.INT16, DataType.INT32, DataType.INT64),
]


def types() -> dict[str, object]:
    """Every type that has all operators."""
    return {dtype.name: one_type(dtype) for dtype in TYPES}


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


PARTS = {"collectives": collectives, "types": types, "survive": survive, "build": build}
print(json.dumps(PARTS[sys.argv[1]]()))
sys.stdout.flush()
runtime.shutdown()
