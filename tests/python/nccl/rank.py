"""One rank's actions, selected by its arguments. Prints one line of JSON.

Numpy arrays stand in for CUDA tensors of the device with this rank's number.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from functools import partial

import numpy as np

from horoscale._core import (
    DataType,
    Device,
    DeviceBuffer,
    HorovodInternalError,
    MessageArg,
    MismatchError,
    OpKind,
    ReduceOp,
    Runtime,
    SetFlags,
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
    """Read memory of a device, which is host memory here."""
    floats = ctypes.cast(buffer.pointer, ctypes.POINTER(ctypes.c_float))
    return [floats[i] for i in range(buffer.nbytes // 4)]


def collectives() -> dict[str, object]:
    """One of each operation, and the counters of the double and of the runtime."""
    said: dict[str, object] = {}
    data = np.full(1000, rank + 1, np.float32)
    for _ in range(3):  # from the second call on found in the cache
        result = np.empty_like(data)
        handle = start(OpKind.ALLREDUCE, data, result, name="sum", reduce_op=ReduceOp.AVERAGE)
        handle.wait_on_stream(0)
        handle.wait()
    said["average"] = [float(result.min()), float(result.max())]
    rows = np.full((rank + 1, 2), rank, np.float32)
    gather = start(OpKind.ALLGATHER, rows, None, name="rows")
    gather.wait_on_stream(0)
    gather.wait()  # the host reads it, so it must wait, too
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
    """The numbers that made() was given."""
    if dtype is DataType.BFLOAT16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return [complex(x).real for x in array.ravel()]


def one_type(dtype: DataType) -> dict[str, object]:
    """Each operation on elements of one type, and the number of its buckets that NCCL ran."""
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
    """Every type that supports all operators."""
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


def message(
    is_send: bool,
    peer: int,
    data: np.ndarray,
    tag: int = 0,
    on_device: bool = True,
    process_set: int = 0,
):
    """Start a send or a receive of float32 on this rank's device."""
    place = device if on_device else None
    room = MessageArg(
        peer, tag, 0, data.ctypes.data, DataType.FLOAT32, data.size, process_set, place
    )
    return runtime.start_message(room, is_send, False, data)


SIZES = [0, 1, 4096, 4097, 1 << 20]  # elements: none, eager messages, and offered ones


def messages() -> dict[str, object]:
    """To the next rank and from the previous one: in order, by tag, from any rank, a mismatch."""
    following, before = (rank + 1) % size, (rank - 1) % size
    said: dict[str, object] = {"sums": []}
    for count in SIZES:
        out, there = np.full(count, rank + 1, np.float32), np.zeros(count, np.float32)
        handles = [message(True, following, out), message(False, before, there)]
        handles[1].wait_on_stream(0)
        handles[1].wait()  # the host reads it, so it must wait, too
        handles[0].wait_on_stream(0)
        said["sums"].append(float(there.sum()))
    # The later tag first, into host memory; then both of the other tag in order.
    outs = [np.full(10_000, 10 * rank + i, np.float32) for i in range(3)]
    sends = [message(True, following, out, tag) for out, tag in zip(outs, (5, 5, 6), strict=True)]
    ins = [np.zeros(10_000, np.float32) for _ in range(3)]
    message(False, before, ins[0], 6, on_device=False).wait()
    for data in ins[1:]:
        message(False, before, data, 5).wait()
    for handle in sends:
        handle.wait()
    said["tags"] = [float(data[-1]) for data in ins]
    # From any rank: the sender is known before the device is done.
    handles = [message(True, peer, outs[0], 7) for peer in range(size) if peer != rank]
    sources = []
    for _ in range(size - 1):
        receive = message(False, -1, ins[0], 7)
        receive.wait_on_stream(0)
        sources.append(receive.result())
        receive.wait()
        assert ins[0][0] == 10 * sources[-1]
    said["sources"] = sorted(sources)
    for handle in handles:
        handle.wait()
    short, errors = np.zeros(9_999, np.float32), []
    for handle in (message(True, following, outs[0], 8), message(False, before, short, 8)):
        try:
            handle.wait_on_stream(0)
        except MismatchError as error:
            errors.append("MismatchError")
            said["mismatch"] = "9999" in str(error) or "39996" in str(error)
    said["errors"] = errors
    metrics = runtime.metrics()["process_sets"]["0"]
    said["received"] = metrics["messages_received"]
    return said


def add_set_with_nccl() -> int:
    """Add a set of all ranks, whose messages NCCL carries."""
    added = runtime.enqueue(
        OpKind.ADD_PROCESS_SET, name="set", ranks=range(size), set_flags=SetFlags.DISTINCT
    )
    added.wait()
    process_set = added.result()
    ones = np.ones(10, np.float32)
    start(OpKind.ALLREDUCE, ones, ones, name="first", process_set=process_set).wait()
    return process_set


def crossing_messages() -> dict[str, object]:
    """Two ranks send to each other while NCCL is busy; returns the calls in its kernels."""
    double = ctypes.CDLL(os.environ["HOROSCALE_LIBNCCL"])
    on_set = {"process_set": add_set_with_nccl()}
    peer = 1 - rank
    out, into, first = (np.full(10_000, rank, np.float32) for _ in range(3))

    def calls() -> list[str]:
        text = ctypes.create_string_buffer(double.double_log(rank, None, 0))
        double.double_log(rank, text, len(text))
        return [line.split()[-1] for line in text.raw.decode().splitlines()]

    def meet() -> None:
        """Afterwards each rank has the other's earlier frames, and the replies to its own."""
        for _ in range(3):
            runtime.enqueue(OpKind.BARRIER).wait()

    for sender in range(2):  # the first message each way has its own launch
        message(rank == sender, peer, first, **on_set).wait()
    before = len(calls())
    double.double_keep_busy(rank, 1)
    handles = [message(rank == 0, peer, first, **on_set)]
    meet()
    handles += [message(True, peer, out, tag=1, **on_set)]
    handles += [message(False, peer, into, tag=1, **on_set)]
    meet()
    double.double_keep_busy(rank, 0)
    for handle in handles:
        handle.wait()
    return {"calls": calls()[before:], "received": float(into[-1])}


def nccl_messages() -> dict[str, object]:
    """Rings in both directions on a set, and its sums: NCCL carries all of it."""
    double = ctypes.CDLL(os.environ["HOROSCALE_LIBNCCL"])
    double.double_set_exclusive(1)
    process_set = add_set_with_nccl()
    peers = [(rank + 1) % size, (rank - 1) % size]
    said = []
    for step in range(10):
        outs = [np.full(10_000, 10 * rank + step, np.float32) for _ in peers]
        ins = [np.zeros(10_000, np.float32) for _ in peers]
        total = [np.ones(10, np.float32) for _ in range(2)]
        starts = []
        for i, (out, into) in enumerate(zip(outs, ins, strict=True)):
            on_set = {"tag": i, "process_set": process_set}
            starts.append(partial(message, True, peers[i], out, **on_set))
            starts.append(partial(message, False, peers[1 - i], into, **on_set))
        for one, on in zip(total, (0, process_set), strict=True):
            starts.append(partial(start, OpKind.ALLREDUCE, one, one, name="sum", process_set=on))
        order = (rank + step) % len(starts)
        handles = [begin() for begin in starts[order:] + starts[:order]]
        for handle in handles:
            handle.wait_on_stream(0)
            handle.wait()
        assert all((one == size).all() for one in total)
        said.append([float(data[-1]) for data in ins])
    metrics = runtime.metrics()["process_sets"][str(process_set)]
    return {"received": said, "nccl_messages": metrics["nccl_messages"]}


def lose_sender() -> dict[str, object]:
    """The last rank is killed: messages that it sent arrive, and pending receives from it fail."""
    data = np.full(1000, rank, np.float32)
    if rank == size - 1:
        for peer in range(size - 1):
            message(True, peer, data).wait()
        for peer in range(size - 1):  # all have started the operations that fail
            message(False, peer, data, 9).wait()
        os.kill(os.getpid(), signal.SIGKILL)
    received = np.zeros_like(data)
    message(False, size - 1, received).wait()
    large = np.zeros(100_000, np.float32)
    handles = [message(False, size - 1, large, 1), message(True, size - 1, large, 2)]
    message(True, size - 1, data, 9).wait()
    said: dict[str, object] = {"received": float(received[-1]), "errors": []}
    for handle in handles:
        try:
            handle.wait_on_stream(0)
        except HorovodInternalError as error:
            said["errors"].append([type(error).__name__, getattr(error, "ranks", None)])
    return said


def build() -> dict[str, object]:
    """The result of the build check."""
    return dict(build_info()["backends"]["nccl"])


PARTS = {
    "collectives": collectives,
    "types": types,
    "survive": survive,
    "messages": messages,
    "crossing_messages": crossing_messages,
    "nccl_messages": nccl_messages,
    "lose_sender": lose_sender,
    "build": build,
}
said = PARTS[sys.argv[1]]()
if "messages" in sys.argv[1]:  # pending exchanges of two ranks would fail when a third one leaves
    runtime.enqueue(OpKind.BARRIER, name="end").wait()
print(json.dumps(said))
sys.stdout.flush()
runtime.shutdown()
