"""send_object and recv_object: interrupts, and several sending threads."""

from __future__ import annotations

import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from support.interrupts import interrupted

import horoscale.numpy as hvd
from horoscale.common import current_runtime

SECONDS = 50


@pytest.fixture
def tag(name: str) -> Iterator[int]:
    """A set for this test, which all ranks leave together, so that failures can't affect others."""
    yield zlib.crc32(name.encode()) << 8
    hvd.barrier()


@pytest.mark.usefixtures("need_ranks")
@pytest.mark.parametrize("size", [3, 100_000])
def test_what_an_interrupted_receive_has_asked_for(size: int, tag: int) -> None:
    """It arrives with the next call."""
    if hvd.rank() == 1:
        with interrupted():
            hvd.recv_object(0, tag)
    hvd.barrier()
    for i in range(3):
        if hvd.rank() == 0:
            hvd.send_object([i] * size, 1, tag)
        elif hvd.rank() == 1:
            assert hvd.recv_object(0, tag) == [i] * size


@pytest.mark.usefixtures("need_ranks")
def test_an_interrupted_send_goes_on(tag: int) -> None:
    objects = [bytes([i]) * 100_000 for i in range(2)]
    if hvd.rank() == 0:
        with interrupted():
            hvd.send_object(objects[0], 1, tag)
    hvd.barrier()
    if hvd.rank() == 0:
        hvd.send_object(objects[1], 1, tag)
    elif hvd.rank() == 1:
        assert [hvd.recv_object(0, tag) for _ in objects] == objects


class InterruptedSends:
    """A runtime's operations, until a Ctrl-C before the second send."""

    def __init__(self, in_flight: Any) -> None:
        self._in_flight = in_flight
        self._sends = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._in_flight, name)

    def send(self, *arguments: Any) -> Any:
        self._sends += 1
        if self._sends == 2:
            raise KeyboardInterrupt
        return self._in_flight.send(*arguments)


@pytest.mark.usefixtures("need_ranks")
def test_a_send_that_is_interrupted_halfway(tag: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if hvd.rank() == 0:
        runtime = current_runtime()
        with monkeypatch.context() as patch:
            patch.setattr(runtime, "_in_flight", InterruptedSends(runtime._in_flight))
            with pytest.raises(KeyboardInterrupt):
                hvd.send_object("lost", 1, tag)
        hvd.send_object("sent", 1, tag)
    elif hvd.rank() == 1:
        assert hvd.recv_object(0, tag) == "sent"


@pytest.mark.usefixtures("need_ranks")
def test_threads_send_and_receive_with_one_tag(tag: int) -> None:
    """Each object arrives exactly once and complete, at one of the threads."""
    threads, each = 3, 20
    received: list[Any] = []

    def send(thread: int) -> None:
        for i in range(each):
            hvd.send_object((thread, i, b"x" * (i * 2000)), 1, tag)

    def receive(_: int) -> None:
        for _ in range(each):
            received.append(hvd.recv_object(0, tag))

    if hvd.rank() < 2:
        work = send if hvd.rank() == 0 else receive
        running = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(threads)]
        for one in running:
            one.start()
        for one in running:
            one.join(SECONDS)
            assert not one.is_alive()
    if hvd.rank() == 1:
        assert all(len(content) == i * 2000 for _, i, content in received)
        expected = Counter((thread, i) for thread in range(threads) for i in range(each))
        assert Counter((thread, i) for thread, i, _ in received) == expected
