"""Random messages between members of process sets, by all calls that send and receive.

Every rank draws the same list, including the contents. No deadlock is possible: all ranks start
asynchronous messages before they wait for any, in one order for each tag. Blocking exchanges run in
list order, so all of their ranks are at the first one that is not done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from types import ModuleType
from typing import Any

import numpy as np
from random_operations import Members, random_values

import horoscale.numpy as hvd

Finish = Callable[[], None]  # waits for the started message, and checks it

DTYPES = ("uint8", "int16", "int64", "float16", "float32", "float64", "complex64", "bool")
EAGER_BYTES = 16 << 10
PIECE_BYTES = 1 << 20
TAGS = (0, 1, 2**62 - 1)  # reused
FIRST_TAG_OF_ITS_OWN = 1000


@dataclass(frozen=True)
class Message:
    """One message, and the calls that send and receive it."""

    src: int
    dst: int
    tag: int
    process_set: hvd.ProcessSet
    content: np.ndarray
    is_shared: bool  # at the sender's
    sends: ModuleType  # the binding: horoscale.numpy or horoscale.torch
    receives: ModuleType

    @property
    def key(self) -> tuple[object, ...]:
        """The key of messages whose order matters."""
        return self.src, self.dst, self.tag, self.process_set.process_set_id

    def tensor(self) -> Any:
        """What the sender sends."""
        own = self.content.copy()
        if self.is_shared:
            own = hvd.empty_shared(self.content.shape, dtype=self.content.dtype)
            own[:] = self.content
        return as_tensor(self.sends, own)

    def room(self) -> Any:
        """What the receiver receives into."""
        return as_tensor(self.receives, np.zeros_like(self.content))

    def check(self, got: Any, source: int | None = None) -> None:
        """Raise AssertionError unless the content and the sender match."""
        said = (
            f"{self.content.size} {self.content.dtype} from {self.src} to {self.dst}, "
            f"tag {self.tag}, {self.process_set}, shared {self.is_shared}, "
            f"{self.sends.__name__}, {self.receives.__name__}"
        )
        assert np.asarray(got).tobytes() == self.content.tobytes(), said
        assert source in (None, self.src), said

    def operation(self, rank: int, room: Any) -> list[hvd.P2POp]:
        """This rank's part in a batch."""
        operations = []
        if rank == self.src:
            operation = hvd.P2POp(hvd.send, self.tensor(), self.dst, self.tag, self.process_set)
            operations.append(operation)
        if rank == self.dst:
            operations.append(hvd.P2POp(hvd.recv, room, self.src, self.tag, self.process_set))
        return operations


def as_tensor(binding: ModuleType, array: np.ndarray) -> Any:
    """The array as the binding expects it, over the same memory."""
    if binding is hvd:
        return array
    import torch

    return torch.from_numpy(array)


@dataclass(frozen=True)
class Exchange:
    """Blocking calls of some ranks, which all of them make before later items of the list."""

    ranks: Sequence[int]
    run: Callable[[int], None]  # on each of them


class Drawing:
    """Draws messages; equal generators give equal messages."""

    def __init__(self, rng: np.random.Generator, bindings: Sequence[ModuleType]) -> None:
        self._rng = rng
        self._bindings = bindings
        self._own_tags = count(FIRST_TAG_OF_ITS_OWN)

    def asynchronous(self, members: Members) -> tuple[Message, bool]:
        """A message for asynchronous calls, and whether its receiver accepts any rank."""
        rng = self._rng
        src, dst = rng.choice(members.ranks, 2)
        from_any = bool(rng.random() < 0.2)
        tag = next(self._own_tags) if from_any else int(rng.choice(TAGS))
        return self._message(members, src, dst, tag), from_any

    def blocking(self, members: Members) -> Exchange:
        """An exchange of blocking calls."""
        kinds = (self._one, self._from_any, self._view, self._object, self._batch)
        return kinds[self._rng.integers(len(kinds))](members)

    def _message(
        self, members: Members, src: int, dst: int, tag: int, content: np.ndarray | None = None
    ) -> Message:
        rng = self._rng
        if content is None:
            content = self._content()
        sends, receives = (self._bindings[k] for k in rng.integers(len(self._bindings), size=2))
        is_shared = bool(rng.random() < 0.3)
        return Message(
            int(src), int(dst), tag, members.process_set, content, is_shared, sends, receives
        )

    def _content(self) -> np.ndarray:
        """Mostly small; some are near the sizes at which the protocol changes."""
        rng = self._rng
        dtype = np.dtype(str(rng.choice(DTYPES)))
        chance = rng.random()
        if chance < 0.5:
            elements = int(rng.integers(0, 100))
        elif chance < 0.8:
            limit = EAGER_BYTES if chance < 0.75 else PIECE_BYTES
            elements = limit // dtype.itemsize + int(rng.integers(-1, 2))
        else:
            elements = int(2 ** rng.uniform(7, 20)) // dtype.itemsize
        return random_values(rng, dtype.name, (elements,))

    def _pair(self, members: Members) -> tuple[int, int]:
        src, dst = self._rng.permutation(members.ranks)[:2]
        return int(src), int(dst)

    def _one(self, members: Members) -> Exchange:
        message = self._message(members, *self._pair(members), int(self._rng.choice(TAGS)))

        def run(rank: int) -> None:
            place = {"tag": message.tag, "process_set": message.process_set}
            if rank == message.src:
                message.sends.send(message.tensor(), message.dst, **place)
            else:
                message.check(message.receives.recv(message.room(), message.src, **place))

        return Exchange((message.src, message.dst), run)

    def _from_any(self, members: Members) -> Exchange:
        dst, *sources = map(int, self._rng.permutation(members.ranks))
        tag, like = next(self._own_tags), self._content()
        messages = {}
        for src in sources:
            content = random_values(self._rng, like.dtype.name, like.shape)
            messages[src] = self._message(members, src, dst, tag, content)

        def run(rank: int) -> None:
            if rank != dst:
                own = messages[rank]
                own.sends.send(own.tensor(), dst, tag=tag, process_set=own.process_set)
                return
            left = dict(messages)
            for _ in sources:
                any_of_them = next(iter(left.values()))
                room = any_of_them.room()
                receives, process_set = any_of_them.receives, any_of_them.process_set
                left.pop(receives.recv_any(room, tag=tag, process_set=process_set)).check(room)

        return Exchange((dst, *sources), run)

    def _view(self, members: Members) -> Exchange:
        src, dst = self._pair(members)
        message = self._message(members, src, dst, next(self._own_tags))
        from_any = bool(self._rng.integers(2))

        def run(rank: int) -> None:
            place = {"tag": message.tag, "process_set": message.process_set}
            if rank == src:
                message.sends.send(message.tensor(), dst, **place)
                return
            source = None if from_any else src
            like = as_tensor(message.receives, message.content)
            view = message.receives.recv_view(like.shape, like.dtype, source, **place)
            with view as tensor:
                message.check(tensor, view.source)

        return Exchange((src, dst), run)

    def _object(self, members: Members) -> Exchange:
        src, dst = self._pair(members)
        sent = {"text": "x" * int(self._rng.integers(50_000)), "array": self._content()}
        place = {"tag": int(self._rng.choice(TAGS)), "process_set": members.process_set}

        def run(rank: int) -> None:
            if rank == src:
                hvd.send_object(sent, dst, **place)
                return
            got = hvd.recv_object(src, **place)
            assert got["text"] == sent["text"]
            assert got["array"].tobytes() == sent["array"].tobytes()

        return Exchange((src, dst), run)

    def _batch(self, members: Members) -> Exchange:
        pairs = [self._rng.choice(members.ranks, 2) for _ in range(self._rng.integers(1, 9))]
        messages = [self._message(members, *pair, int(self._rng.choice(TAGS))) for pair in pairs]

        def run(rank: int) -> None:
            rooms = [np.zeros_like(message.content) for message in messages]
            both = list(zip(messages, rooms, strict=True))
            hvd.batch([one for message, room in both for one in message.operation(rank, room)])
            for message, room in both:
                if rank == message.dst:
                    message.check(room)

        return Exchange(members.ranks, run)


def begin(message: Message, from_any: bool, rank: int) -> list[Finish]:
    """Start this rank's part of an asynchronous message."""
    place = {"tag": message.tag, "process_set": message.process_set}
    finishes: list[Finish] = []
    if rank == message.src:
        sends = message.sends
        sent = sends.send_async(message.tensor(), message.dst, **place)
        finishes.append(lambda: sends.synchronize(sent))
    if rank == message.dst:
        receives, room = message.receives, message.room()
        if from_any:
            taken = receives.recv_any_async(room, **place)
            finishes.append(lambda: message.check(room, receives.synchronize(taken)))
        else:
            handle = receives.recv_async(room, message.src, **place)
            finishes.append(lambda: message.check(receives.synchronize(handle)))
    return finishes
