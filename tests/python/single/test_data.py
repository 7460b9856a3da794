"""horoscale.data: loaders that prepare batches in a background thread."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from horoscale.data import AsyncDataLoaderMixin, BaseDataLoader

SECONDS = 20  # for events that take milliseconds


class Numbers(BaseDataLoader):
    """Yields 0, 1, 2, … and reports its progress."""

    def __init__(self, count: int, fails_at: int | None = None) -> None:
        self.count = count
        self.fails_at = fails_at
        self.yielded = 0
        self.reached = threading.Condition()
        self.closed = threading.Event()
        self.threads: set[int] = set()

    def __len__(self) -> int:
        return self.count

    def _iterate(self) -> Iterator[int]:
        self.threads.add(threading.get_ident())
        try:
            for number in range(self.count):
                if number == self.fails_at:
                    raise KeyError(f"no batch {number}")
                with self.reached:
                    self.yielded += 1
                    self.reached.notify_all()
                yield number
        finally:
            self.closed.set()

    def _process_batch(self, batch: int) -> tuple[int, int]:
        return batch, threading.get_ident()


class Loader(AsyncDataLoaderMixin, Numbers):
    pass


def prefetch_threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "horoscale-prefetch"]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    gc.collect()
    for thread in prefetch_threads():
        thread.join(SECONDS)
    assert not prefetch_threads()


def test_the_base_class_names_what_is_missing() -> None:
    class Empty(BaseDataLoader):
        pass

    with pytest.raises(NotImplementedError, match=r"Empty has to implement __len__"):
        len(Empty())
    with pytest.raises(NotImplementedError, match=r"Empty has to implement _iterate"):
        next(iter(Empty()))


@pytest.mark.parametrize("size", [0, 1, 3, 64])
def test_every_pass_has_all_batches_in_order(size: int) -> None:
    loader = Loader(size, 10)
    own = threading.get_ident()
    for _ in range(3):
        assert list(loader) == [(number, own) for number in range(10)]
    assert len(loader) == 10
    assert (own in loader.threads) == (size == 0)


def test_the_thread_runs_ahead_by_the_size_of_the_queue() -> None:
    loader = Loader(3, count=100)
    batches = iter(loader)
    assert next(batches)[0] == 0
    with loader.reached:
        # One was consumed, three are queued, and one waits for room.
        assert loader.reached.wait_for(lambda: loader.yielded == 5, SECONDS)
    assert next(batches)[0] == 1
    with loader.reached:
        assert loader.reached.wait_for(lambda: loader.yielded == 6, SECONDS)
    loader.close_async_loader()
    assert loader.yielded == 6


def test_two_passes_at_a_time() -> None:
    loader = Loader(2, 4)
    assert [(a, b) for (a, _), (b, _) in zip(loader, loader, strict=True)] == [
        (number, number) for number in range(4)
    ]


@pytest.mark.parametrize("size", [0, 2])
def test_an_error_comes_after_the_batches_before_it(size: int) -> None:
    batches = iter(Loader(size, 10, fails_at=3))
    assert [next(batches)[0] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError, match="no batch 3"):
        next(batches)


def test_an_error_before_the_first_batch() -> None:
    class Broken(AsyncDataLoaderMixin, BaseDataLoader):
        pass

    with pytest.raises(NotImplementedError, match="_iterate"):
        next(iter(Broken()))


def test_leaving_the_loop_ends_the_thread() -> None:
    loader = Loader(2, 1000)
    for batch, _ in loader:
        if batch == 5:
            break
    gc.collect()
    assert loader.closed.wait(SECONDS)
    assert loader.yielded < 20


def test_closing_ends_a_pass_that_is_under_way() -> None:
    loader = Loader(2, 1000)
    batches = iter(loader)
    next(batches)
    loader.close_async_loader()
    assert loader.closed.is_set()
    with pytest.raises(RuntimeError, match="closed"):
        next(batches)
    assert len(list(loader)) == 1000  # a new one
    loader.close_async_loader()
    loader.close_async_loader()


def test_closing_wakes_a_consumer_that_waits() -> None:
    go = threading.Event()

    class Slow(AsyncDataLoaderMixin, BaseDataLoader):
        def _iterate(self) -> Iterator[int]:
            yield 0
            go.wait(SECONDS)

    loader = Slow()
    first = threading.Event()
    outcome: list[BaseException] = []

    def consume() -> None:
        try:
            for _ in loader:
                first.set()
        except RuntimeError as error:
            outcome.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert first.wait(SECONDS)
    [prefetch] = loader._passes
    prefetch._queue.close()  # as close_async_loader() does before it waits for the thread
    go.set()
    consumer.join(SECONDS)
    assert "closed" in str(outcome[0])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_is_told() -> None:
    loader = Loader(2, 10)
    batches = iter(loader)
    next(batches)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            next(batches)
            message = b"no error"
        except RuntimeError as error:
            message = str(error).encode()
        os.write(write, message)
        os._exit(0)
    os.waitpid(child, 0)
    assert b"forked" in os.read(read, 1000)
    os.close(read)
    os.close(write)
    batches.close()


def test_a_process_ends_in_the_middle_of_a_pass() -> None:
    script = """
from horoscale.data import AsyncDataLoaderMixin, BaseDataLoader

class Endless(AsyncDataLoaderMixin, BaseDataLoader):
    def _iterate(self):
        while True:
            yield 1

batches = iter(Endless())
print(next(batches))
"""
    ended: Any = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=SECONDS
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "1\n", "")
