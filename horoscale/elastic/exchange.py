"""Snapshots as messages from one rank to another."""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from horoscale._core import DataType, MessageArg, address_of
from horoscale.common.job import current_runtime
from horoscale.common.messages import Channel
from horoscale.elastic.arrays import Spec
from horoscale.elastic.snapshot import Block, Snapshot


def exchange(
    outgoing: Sequence[tuple[int, Snapshot]],
    incoming: Sequence[int],
    memory: Mapping[str, Block] | None = None,
) -> list[Snapshot]:
    """Send snapshots to ranks. Return the received ones in the order of their senders.

    A rank sends at most one snapshot to another. With `memory`, only one snapshot is received,
    which reuses blocks of the same element type and shape. Raises HorovodInternalError if a rank
    failed.
    """
    handles = []
    for peer, snapshot in outgoing:
        specs = [(name, one.spec.dtype, one.spec.shape) for name, one in snapshot.blocks.items()]
        header = pickle.dumps((snapshot.tree, specs))
        handles.append(_start(peer, array("q", [len(header)]), 8, True))
        handles.append(_start(peer, header, len(header), True))
        handles += _blocks(peer, snapshot, True)
    arrived = [_receive(peer, memory or {}) for peer in incoming]
    for handle in [*handles, *(one for _, started in arrived for one in started)]:
        handle.wait()
    return [snapshot for snapshot, _ in arrived]


def _receive(peer: int, memory: Mapping[str, Block]) -> tuple[Snapshot, list[Any]]:
    """Return a snapshot that is being received, and the pending operations."""
    length = array("q", [0])
    _start(peer, length, 8, False).wait()
    header = bytearray(length[0])
    _start(peer, header, len(header), False).wait()
    tree, specs = pickle.loads(bytes(header))
    snapshot = Snapshot(tree)
    for name, dtype, shape in specs:
        spec, block = Spec(dtype, tuple(shape)), memory.get(name)
        if block is None or block.spec != spec:
            block = Block.empty(spec)
        snapshot.blocks[name] = block
    return snapshot, _blocks(peer, snapshot, False)


def _blocks(peer: int, snapshot: Snapshot, is_send: bool) -> list[Any]:
    """Start sending or receiving all non-empty blocks."""
    return [
        _start(peer, block.data, block.spec.nbytes, is_send)
        for block in snapshot.blocks.values()
        if block.spec.nbytes
    ]


def _start(peer: int, memory: Any, nbytes: int, is_send: bool) -> Any:
    address = memory.ctypes.data if hasattr(memory, "ctypes") else address_of(memory)
    message = MessageArg(peer, 0, Channel.SNAPSHOTS, address, DataType.UINT8, nbytes)
    return current_runtime().start_message(message, is_send, not is_send, memory)
