"""Sends a snapshot from one rank to the others: hashes first, then only the blocks that differ."""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Sequence

import numpy as np

from horoscale._core import DataType, OpKind, ReduceOp, TensorArg, address_of
from horoscale.common.job import current_runtime
from horoscale.common.payloads import broadcast_bytes
from horoscale.elastic.arrays import Spec
from horoscale.elastic.snapshot import Block, Snapshot

_NAME = "elastic.sync"


def send_snapshot(own: Snapshot | None, number: int, source: int) -> tuple[Snapshot, int]:
    """Return the source's snapshot and number on every rank. Collective over all ranks.

    `own` is what this rank has: blocks that are equal to the source's are not sent, where that is
    so on all ranks. It is not changed: what arrives goes to new memory, for if the transfer breaks
    off it has to be there still.

    Raises HorovodInternalError if a rank failed.
    """
    runtime = current_runtime()
    own = own or Snapshot()
    is_source = runtime.topology.rank == source
    header = None
    if is_source:
        specs = [
            (name, block.spec.dtype, block.spec.shape, block.digest())
            for name, block in own.blocks.items()
        ]
        header = pickle.dumps((number, own.tree, specs))
    number, tree, specs = pickle.loads(broadcast_bytes(runtime, header, source, f"{_NAME}.header"))
    wanted = [(name, Spec(dtype, tuple(shape)), digest) for name, dtype, shape, digest in specs]
    # All ranks hash, the source too, whose hashes are at hand: it takes part in the vote alone.
    missing = array("B", [0] * len(wanted) if is_source else _missing(own, wanted))
    _agree_on_missing(missing)
    result = Snapshot(tree)
    to_send: list[Block] = []
    for (name, spec, _), differs in zip(wanted, missing, strict=True):
        block = own.blocks.get(name)
        if block is None or (differs and not is_source):
            block = Block.empty(spec)
        if differs:
            to_send.append(block)
        result.blocks[name] = block
    _broadcast(to_send, source)
    return result, number


def _missing(own: Snapshot, wanted: Sequence[tuple[str, Spec, bytes]]) -> list[int]:
    def differs(name: str, spec: Spec, digest: bytes) -> bool:
        block = own.blocks.get(name)
        return block is None or block.spec != spec or block.digest() != digest

    return [int(differs(*one)) for one in wanted]


def _agree_on_missing(missing: array[int]) -> None:
    """Learn which blocks any rank lacks."""
    if not missing:
        return
    address = address_of(missing)
    current_runtime().enqueue(
        OpKind.ALLREDUCE,
        tensors=[TensorArg(address, address, DataType.UINT8, (len(missing),))],
        name=f"{_NAME}.missing",
        reduce_op=ReduceOp.MAX,
        will_wait=True,
        keep_alive=missing,
    ).wait()


def _broadcast(blocks: Sequence[Block], source: int) -> None:
    runtime = current_runtime()
    handles = []
    for i, block in enumerate(blocks):
        if block.spec.nbytes:
            data: np.ndarray = block.data
            address = data.ctypes.data
            handles.append(
                runtime.enqueue(
                    OpKind.BROADCAST,
                    tensors=[TensorArg(address, address, DataType.UINT8, (data.size,))],
                    name=f"{_NAME}.{i}",
                    root=source,
                    sealed=True,
                    keep_alive=data,
                )
            )
    for handle in handles:
        handle.wait()
