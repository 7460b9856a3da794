"""Several threads of each rank send and receive at once, or gather uneven inputs."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import horoscale.numpy as hvd
from horoscale._core import DataType
from horoscale.common.prepared import prepared_allreduce

THREADS = 3
MESSAGES = 90
SECONDS = 50
SIZES = (0, 1, 300, 16_384, 16_385, 200_000)


@pytest.fixture
def tag(name: str) -> Iterator[int]:
    """A set for this test, which all ranks leave together, so that failures can't affect others."""
    yield zlib.crc32(name.encode()) << 8
    hvd.barrier()


def in_threads(work: Callable[[int], None], threads: int = THREADS) -> None:
    """Run each thread's work; raise the first failure."""
    failures: list[BaseException] = []

    def guarded(thread: int) -> None:
        try:
            work(thread)
        except BaseException as error:
            failures.append(error)

    running = [threading.Thread(target=guarded, args=(i,), daemon=True) for i in range(threads)]
    for one in running:
        one.start()
    for one in running:
        one.join(SECONDS)
        assert failures or not one.is_alive(), "a thread waits for ever"
    if failures:
        raise failures[0]


@dataclass(frozen=True)
class Message:
    src: int
    dst: int
    tag: int
    number: int
    size: int
    how: str  # the receiving call

    def content(self) -> np.ndarray:
        return np.random.default_rng(self.number).integers(0, 256, self.size, np.uint8)

    def thread_of(self, rank: int) -> int:
        """One thread sends, and one receives, all messages whose order matters."""
        return (self.src + 3 * self.dst + 7 * self.tag + rank) % THREADS

    def receive(self) -> np.ndarray:
        into = np.zeros(self.size, np.uint8)
        if self.how == "view":
            with hvd.recv_view(self.size, np.uint8, self.src, self.tag) as array:
                return array.copy()
        if self.how == "async":
            return hvd.synchronize(hvd.recv_async(into, self.src, self.tag))
        if self.how == "any":
            assert hvd.recv_any(into, self.tag) == self.src
            return into
        return hvd.recv(into, self.src, self.tag)


def drawn(seed: int, tag: int) -> list[Message]:
    rng = np.random.default_rng(seed)
    messages = []
    for number in range(MESSAGES):
        src, dst = map(int, rng.integers(hvd.size(), size=2))
        how = str(rng.choice(["recv", "async", "view", "any"]))
        # A receive from any rank needs a tag that no other rank uses for this receiver.
        own = tag + (128 + number if how == "any" else int(rng.integers(3)))
        messages.append(Message(src, dst, own, number, int(rng.choice(SIZES)), how))
    return messages


def shuffled(messages: list[Message], rng: np.random.Generator) -> list[Message]:
    """Shuffled, except for messages that have ranks and tag in common."""
    keys = [(one.src, one.dst, one.tag) for one in messages]
    queues = {key: [one for one in messages if (one.src, one.dst, one.tag) == key] for key in keys}
    return [queues[keys[i]].pop(0) for i in rng.permutation(len(keys))]


@pytest.mark.parametrize("seed", range(3))
def test_random_messages(seed: int, tag: int) -> None:
    """Whatever the threads are doing meanwhile, messages arrive in order and complete."""
    messages, me = drawn(seed, tag), hvd.rank()

    def work(thread: int) -> None:
        rng = np.random.default_rng([seed, me, thread])
        sends = [one for one in messages if one.src == me and one.thread_of(me) == thread]
        recvs = [one for one in messages if one.dst == me and one.thread_of(me) == thread]
        sent = [hvd.send_async(one.content(), one.dst, one.tag) for one in shuffled(sends, rng)]
        for one in shuffled(recvs, rng):
            assert one.receive().tobytes() == one.content().tobytes(), one
        for handle in sent:
            hvd.synchronize(handle)

    in_threads(work)


def test_uneven_rows_into_out(name: str) -> None:
    """Each thread's operations have their own names."""

    def work(thread: int) -> None:
        for step in range(15):
            rows = [(rank * 5 + thread + step) % 4 * 300 for rank in range(hvd.size())]
            out = np.zeros((sum(rows), 2))
            own = np.full((rows[hvd.rank()], 2), hvd.rank() + 10.0 * thread)
            result = hvd.allgather(own, name=f"{name}.{thread}", out=out)
            assert result is out
            expected = np.repeat(np.arange(hvd.size()) + 10.0 * thread, rows)
            np.testing.assert_array_equal(out, np.stack([expected] * 2, axis=1))

    in_threads(work)


def test_several_threads_wait_for_one_receive(tag: int) -> None:
    for step in range(20):
        into = np.zeros(3)
        handle = hvd.recv_async(into, hvd.rank(), tag)
        results: list[Any] = []

        def work(thread: int, handle: Any = handle, results: list[Any] = results) -> None:
            if thread == 0:
                hvd.send(np.full(3, float(step)), hvd.rank(), tag)  # noqa: B023
            results.append(hvd.synchronize(handle))

        in_threads(work)
        assert [one is into for one in results] == [True] * THREADS
        assert (into == step).all()


@pytest.mark.usefixtures("need_ranks")
def test_no_memory_for_a_handle(name: str) -> None:
    """A call that can't create a handle returns when its operation is done."""
    testing = pytest.importorskip("_testcapi")
    shape = (100_000,)  # too many for one hop
    own, result = np.ones(shape), np.zeros(shape)
    how = 1, name, 1.0, 1.0, hvd.global_process_set, 0
    template = prepared_allreduce(own.dtype, shape, lambda _: DataType.FLOAT64, *how)
    addresses = own.ctypes.data, result.ctypes.data
    raised = False
    if hvd.rank() == 0:
        hvd.send(np.zeros(1), 1)
        run, forbid, allow = template.run, testing.set_nomemory, testing.remove_mem_hooks
        source, target = addresses
        try:
            forbid(0)
            run(source, target, own)
        except MemoryError:
            raised = True
        finally:
            allow()
        assert (result == hvd.size()).all(), f"MemoryError: {raised}"
        return
    if hvd.rank() == 1:
        hvd.recv(np.zeros(1), 0)
        time.sleep(1)  # longer than the call waits without a handle
    template.run(*addresses, own)
    assert (result == hvd.size()).all()
