"""The thread that completes futures of operations: one per process, from the first future on.

It waits for operations like any other thread, and thereby drives the engine while the user's
threads compute. Operations of a queue complete in order, so the thread only checks the first one of
each.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Protocol

from horoscale._core import HorovodInternalError
from horoscale.common import job

# How long it waits for one operation before it checks for others: new ones, and the rest.
_ALONE_SECONDS = 0.02
_AMONG_OTHERS_SECONDS = 0.001
_END_SECONDS = 2.0


class Followed(Protocol):
    """An operation with a future."""

    queue: object

    def advance(self, seconds: float) -> bool:
        """Wait for at most `seconds`. Return whether the operation is done and its future set."""

    def fail(self, error: Exception) -> None:
        """Set the future to an error."""


class _Thread(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="horoscale-futures", daemon=True)
        self._changed = threading.Condition()
        self._queues: dict[int, deque[Followed]] = {}
        self._ending = False

    def follow(self, operation: Followed) -> bool:
        """Follow an operation. Return False if the thread is ending."""
        with self._changed:
            if self._ending:
                return False
            self._queues.setdefault(id(operation.queue), deque()).append(operation)
            self._changed.notify()
        return True

    def end(self) -> None:
        """Stop the thread, and fail the operations that it follows."""
        with self._changed:
            self._ending = True
            self._changed.notify()
        if threading.current_thread() is not self:
            self.join(_END_SECONDS)

    def run(self) -> None:
        while heads := self._heads():
            some_done = False
            seconds = 0.0 if len(heads) > 1 else _ALONE_SECONDS
            for key, head in heads:
                if head.advance(seconds):
                    some_done = True
                    self._pop(key)
            if not some_done and len(heads) > 1:
                for key, head in heads:
                    if head.advance(_AMONG_OTHERS_SECONDS):
                        self._pop(key)
        error = HorovodInternalError("the job was left before the operation was done")
        for queue in self._queues.values():
            for operation in queue:
                operation.fail(error)

    def _heads(self) -> list[tuple[int, Followed]]:
        """Wait until there is an operation to follow. Return the first one of each queue."""
        with self._changed:
            while not self._queues and not self._ending:
                self._changed.wait()
            if self._ending:
                return []
            return [(key, queue[0]) for key, queue in self._queues.items()]

    def _pop(self, key: int) -> None:
        with self._changed:
            queue = self._queues[key]
            queue.popleft()
            if not queue:
                del self._queues[key]


_thread: _Thread | None = None
_lock = threading.Lock()


def follow(operation: Followed) -> None:
    """Set an operation's future when it is done."""
    global _thread
    with _lock:
        while _thread is None or not _thread.follow(operation):
            _thread = _Thread()
            _thread.start()


def is_current_thread() -> bool:
    """Return whether the calling thread is the one that completes futures."""
    return threading.current_thread() is _thread


def _end() -> None:
    global _thread
    with _lock:
        thread, _thread = _thread, None
    if thread is not None and thread.is_alive():
        thread.end()


job.at_end(_end)
