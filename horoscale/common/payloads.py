"""Collectives on bytes, used for objects and for the agreement on process sets.

The bytes are authenticated: data modified between hosts is never unpickled.
"""

from __future__ import annotations

from array import array

from horoscale._core import DataType, OpKind, Runtime, TensorArg, address_of


def allgather_bytes(
    runtime: Runtime, payload: bytes, members: int, name: str | None = None, process_set: int = 0
) -> list[bytes]:
    """Return the payloads of the set's `members` in rank order."""
    handle = runtime.enqueue(
        OpKind.ALLGATHER,
        tensors=[TensorArg(address_of(payload), 0, DataType.UINT8, (len(payload),))],
        name=name,
        process_set=process_set,
        will_wait=True,
        sealed=True,
        keep_alive=payload,
    )
    handle.wait()
    lengths = handle.output_rows(0, members)
    everything = bytes(handle.output(0).buffer)
    ends = [sum(lengths[: i + 1]) for i in range(members)]
    return [everything[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def broadcast_bytes(
    runtime: Runtime,
    payload: bytes | None,
    root: int,
    name: str | None = None,
    process_set: int = 0,
) -> bytes:
    """Return the root's payload. The other ranks pass None."""

    def broadcast(buffer: bytearray | array[int], dtype: DataType, step: str) -> None:
        address = address_of(buffer)
        runtime.enqueue(
            OpKind.BROADCAST,
            tensors=[TensorArg(address, address, dtype, (len(buffer),))],
            name=f"{name}.{step}" if name else None,
            process_set=process_set,
            root=root,
            will_wait=True,
            sealed=True,
            keep_alive=buffer,
        ).wait()

    length = array("q", [0 if payload is None else len(payload)])
    broadcast(length, DataType.INT64, "length")
    content = bytearray(length[0]) if payload is None else bytearray(payload)
    broadcast(content, DataType.UINT8, "content")
    return bytes(content)
