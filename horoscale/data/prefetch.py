"""Prefetch: an iterator that a background thread runs ahead of its consumer."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

# Maximum wait at exit for a thread that is inside user code.
_AT_EXIT_S = 5.0


class _Queue:
    """A queue of at most `size` items between the two threads, and the producer's end state."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._changed = threading.Condition()
        self._items: deque[Any] = deque()
        self._ended = False
        self._error: BaseException | None = None
        self._closed = False

    def put(self, item: Any) -> bool:
        """Add an item, waiting for room; return False if the consumer has closed the queue."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._items) < self._size)
            if not self._closed:
                self._items.append(item)
                self._changed.notify_all()
            return not self._closed

    def end(self, error: BaseException | None) -> None:
        """Mark the end. The consumer then stops, or raises `error`."""
        with self._changed:
            self._ended = True
            self._error = error
            self._changed.notify_all()

    def get(self) -> Any:
        """Return the next item. Raises StopIteration at the end, or the producer's error."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._ended or self._items)
            if self._closed:
                raise RuntimeError("the data loader was closed during a pass over its data")
            if self._items:
                item = self._items.popleft()
                self._changed.notify_all()
                return item
            error, self._error = self._error, None  # raised once, followed by the end
        if error is not None:
            raise error
        raise StopIteration

    def close(self) -> None:
        """Drop queued items, and wake up waiting threads."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._error = None
            self._changed.notify_all()


class Prefetch(Iterator[Any]):
    """Iterates over the result of `iterate()`, at most `size` items ahead, in a daemon thread.

    Only one thread at a time may consume it. A thread does not survive a fork: a child that
    continues with its parent's Prefetch gets a RuntimeError.
    """

    def __init__(self, iterate: Callable[[], Iterable[Any]], size: int) -> None:
        """Start the thread, which calls `iterate`."""
        self._queue = _Queue(size)
        self._process = os.getpid()
        self._thread = threading.Thread(
            target=_produce, args=(iterate, self._queue), name="horoscale-prefetch", daemon=True
        )
        self._thread.start()
        # Also runs at exit, where a daemon thread inside foreign code could crash the process.
        self._finalizer = weakref.finalize(self, _stop, self._queue, self._thread)

    def __next__(self) -> Any:
        """Return the next item; raise the exception of `iterate`."""
        if os.getpid() != self._process:
            raise RuntimeError("a pass over a data loader can't go on in a forked process")
        return self._queue.get()

    def close(self) -> None:
        """End the thread when `iterate` yields next, and wait for it. May be called repeatedly."""
        if os.getpid() != self._process:
            return
        self._queue.close()
        if self._thread is not threading.current_thread():  # garbage collected in that thread
            self._thread.join()
        self._finalizer.detach()


def _produce(iterate: Callable[[], Iterable[Any]], queue: _Queue) -> None:
    error: BaseException | None = None
    try:
        items = iter(iterate())
        for item in items:
            if not queue.put(item):
                break
        if hasattr(items, "close"):
            items.close()  # runs a generator's `finally` in the thread that ran the rest
    except BaseException as caught:
        error = caught
    queue.end(error)


def _stop(queue: _Queue, thread: threading.Thread) -> None:
    queue.close()
    if thread is not threading.current_thread():
        thread.join(_AT_EXIT_S)
