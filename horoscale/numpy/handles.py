"""Handle: an asynchronous operation on arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from horoscale import _core
from horoscale.common import handles as shared

T = TypeVar("T")
U = TypeVar("U")


class Handle(Generic[T]):
    """An asynchronous operation. Pass it to poll() and synchronize(), in any thread."""

    __slots__ = ("_finish", "_operation", "_result")

    _result: T

    def __init__(self, operation: _core.Handle, finish: Callable[[_core.Handle], T]) -> None:
        """Track `operation`. When it has completed, `finish` creates the result."""
        self._operation = operation
        self._finish: Callable[[_core.Handle], T] | None = finish

    def done(self) -> bool:
        """Return whether the operation has completed or failed."""
        return self._finish is None or self._operation.done()

    def wait(self) -> T:
        """Wait for the operation and return its result. Later calls return the same result."""
        finish = self._finish
        if finish is not None:
            self._operation.wait()
            with shared.finishing:
                if self._finish is not None:
                    self._result = finish(self._operation)
                    self._finish = None
        return self._result

    def then(self, change: Callable[[T], U]) -> Handle[U]:
        """Return a handle with a changed result. Call this before the first wait()."""
        finish = self._finish
        assert finish is not None
        return Handle(self._operation, lambda operation: change(finish(operation)))

    def single(self: Handle[list[U]]) -> Handle[U]:
        """Return the handle of a group of one as a handle of its only member."""
        return self.then(lambda results: results[0])


def poll(handle: Handle[T]) -> bool:
    """Return whether an operation has completed, so that synchronize() would not block."""
    return handle.done()


def synchronize(handle: Handle[T]) -> T:
    """Wait for an operation and return its result: an array, or a list for a group.

    Raises:
        MismatchError: the ranks' calls do not match. Further operations work.
        RankFailedError: a rank of the process set died or left.
        HorovodInternalError: another failure, such as a concurrent hvd.shutdown().
    """
    return handle.wait()
