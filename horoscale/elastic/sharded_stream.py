"""ShardedStream: distributes the shards of a sequentially readable data set among the ranks."""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from horoscale._core import DataType, OpKind, ReduceOp, TensorArg, address_of
from horoscale.common.job import current_runtime
from horoscale.common.payloads import allgather_bytes
from horoscale.elastic.membership import membership

_NAME = "elastic.stream"
_DONE = "done"  # a shard was read to its end
_END = object()
_AT = "at"  # a shard was read up to a saved state


class Stateful(Protocol):
    """The interface of an open shard, such as torchdata's StatefulDataLoader."""

    def __iter__(self) -> Iterator[Any]:
        """Continue from the last load_state_dict(), or start at the beginning."""

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the iteration, as a picklable value."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Make the next iteration continue at the position of state_dict()."""


class ShardedStream:
    """Reads each shard on one rank at a time, and records all positions at each commit.

        stream = hvd.elastic.ShardedStream(files, open_file)
        state = hvd.elastic.TorchState(model, optimizer, stream=stream)

        for batch in stream:  # None on a rank that has no batch while others do
            optimizer.zero_grad()
            if batch is not None:
                loss = mean_loss(model, batch) * hvd.size() / stream.active
                loss.backward()
            optimizer.step()
            state.commit()
        stream.next_epoch()

    When the ranks change, unfinished shards are redistributed and continue at the positions of the
    committed model, which has seen each item of an epoch exactly once. A rank reads its shards one
    after the other. All ranks iterate in lockstep: each step runs a small allreduce.

    Attributes: `epoch`; `active`, the number of ranks that have an item in this step.
    """

    def __init__(self, shards: Sequence[Any], open_shard: Callable[[Any], Stateful]) -> None:
        """Start with epoch 0.

        Args:
            shards: names or other arguments for `open_shard`, the same on all ranks.
            open_shard: opens a shard at its beginning.
        """
        self.epoch = 0
        self.active = 0
        self._shards = list(shards)
        self._open_shard = open_shard
        self._reached: dict[int, tuple[Any, ...]] = {}  # by shard; none for unread shards
        self._own: list[int] | None = None  # this rank's unfinished shards
        self._dealt: frozenset[int] = frozenset()  # these, and those that it has finished
        self._dealt_in: int | None = None  # the view
        self._open: tuple[Stateful, Iterator[Any]] | None = None  # the first of them

    def __iter__(self) -> Iterator[Any]:
        """Yield this rank's next items until no rank has any. Collective.

        Raises HorovodInternalError if a rank failed, and the exceptions of a shard.
        """
        while True:
            has, item = self._next()
            self.active = _count(has)
            if self.active == 0:
                return
            yield item

    def next_epoch(self) -> None:
        """Start the next epoch: read all shards from the beginning."""
        self.epoch += 1
        self._reached = {}
        self._close()

    def before_commit(self) -> None:
        """Collect all shards' positions. Called by states that hold the stream. Collective."""
        runtime = current_runtime()
        self._note()
        own = pickle.dumps({one: self._reached[one] for one in self._dealt & set(self._reached)})
        size = runtime.topology.size
        for told in allgather_bytes(runtime, own, size, f"{_NAME}.reached"):
            self._reached.update(pickle.loads(told))

    def state_dict(self) -> dict[str, Any]:
        """Return the values for a commit."""
        return {"epoch": self.epoch, "reached": dict(self._reached)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the positions at which state_dict() was called."""
        self.epoch = state_dict["epoch"]
        self._reached = dict(state_dict["reached"])
        self._close()

    def _next(self) -> tuple[bool, Any]:
        """Return whether this rank has an item, and the item."""
        own = self._left()
        while own:
            item = next(self._opened(own[0]), _END)
            if item is not _END:
                return True, item
            self._reached[own.pop(0)] = (_DONE, None)
            self._open = None
        return False, None

    def _left(self) -> list[int]:
        """Return this rank's unfinished shards, redistributed if the ranks have changed."""
        view = membership().view
        now = None if view is None else view.number
        if self._own is None or now != self._dealt_in:
            self._close()
            topology = current_runtime().topology
            shards = range(len(self._shards))
            left = [one for one in shards if self._reached.get(one, (_AT,))[0] != _DONE]
            self._own = left[topology.rank :: topology.size]
            self._dealt, self._dealt_in = frozenset(self._own), now
        return self._own

    def _opened(self, shard: int) -> Iterator[Any]:
        if self._open is None:
            opened = self._open_shard(self._shards[shard])
            if shard in self._reached:
                opened.load_state_dict(self._reached[shard][1])
            self._open = opened, iter(opened)
        return self._open[1]

    def _note(self) -> None:
        """Record the position of the open shard."""
        if self._open is not None and self._own:
            self._reached[self._own[0]] = (_AT, self._open[0].state_dict())

    def _close(self) -> None:
        self._own = self._open = None
        self._dealt = frozenset()


def _count(has: bool) -> int:
    """Return the number of ranks on which `has` is true."""
    said = array("i", [has])
    address = address_of(said)
    current_runtime().enqueue(
        OpKind.ALLREDUCE,
        tensors=[TensorArg(address, address, DataType.INT32, (1,))],
        name=f"{_NAME}.active",
        reduce_op=ReduceOp.SUM,
        will_wait=True,
        keep_alive=said,
    ).wait()
    return said[0]
