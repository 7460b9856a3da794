"""Send a snapshot from one rank to the others: hashes first, then only the blocks that differ."""

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


def all_agree(agree: bool) -> bool:
    """Return whether all ranks agree. Collective. Raises HorovodInternalError if a rank failed."""
    said = array("B", [agree])
    _allreduce(said, ReduceOp.MIN, f"{_NAME}.agree")
    return bool(said[0])


def send_snapshot(own: Snapshot | None, number: int, source: int) -> tuple[Snapshot, int, bool]:
    """Return the source's snapshot, its number, and whether it is equal to this rank's.

    `own` is this rank's snapshot. Blocks that are equal on all ranks are not sent. `own` is not
    modified, because it is still needed if the transfer fails: received blocks use new memory.
    Collective over all ranks.

    Raises HorovodInternalError if a rank failed.
    """
    runtime = current_runtime()
    own = own or Snapshot()
    is_source = runtime.topology.rank == source
    digests = {
        name: block.digest() for name, block in own.blocks.items()
    }  # on all ranks concurrently
    header = None
    if is_source:
        specs = [
            (name, block.spec.dtype, block.spec.shape, digests[name])
            for name, block in own.blocks.items()
        ]
        header = pickle.dumps((number, own.tree, specs))
    number, tree, specs = pickle.loads(broadcast_bytes(runtime, header, source, f"{_NAME}.header"))
    wanted = [(name, Spec(dtype, tuple(shape)), digest) for name, dtype, shape, digest in specs]
    missing = array(
        "B",
        [
            digests.get(name) != digest or own.blocks[name].spec != spec
            for name, spec, digest in wanted
        ],
    )
    had_all = not any(missing) and own.tree == tree
    if missing:
        _allreduce(missing, ReduceOp.MAX, f"{_NAME}.missing")  # blocks missing on any rank
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
    return result, number, had_all


def _allreduce(said: array[int], op: ReduceOp, name: str) -> None:
    address = address_of(said)
    current_runtime().enqueue(
        OpKind.ALLREDUCE,
        tensors=[TensorArg(address, address, DataType.UINT8, (len(said),))],
        name=name,
        reduce_op=op,
        will_wait=True,
        keep_alive=said,
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
