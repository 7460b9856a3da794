"""Handle: an operation that was started and may not have completed yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from horoscale import _core
from horoscale.common import handles as shared
from horoscale.torch.compiling import outside_graph
from horoscale.torch.tensors import current_stream

# A tensor, a list of tensors (grouped operations) or a tuple (alltoall with splits).
Outcome = Any


class Handle:
    """The result of an _async function. Pass it to synchronize() when you need the result.

    The operation runs even if no thread waits for it, and keeps its tensors alive. Several threads
    may wait for the same handle.
    """

    __slots__ = ("_complete", "_cuda_device", "_operation", "_outcome")

    def __init__(
        self,
        operation: _core.Handle,
        complete: Callable[[_core.Handle], Outcome],
        cuda_device: int | None = None,
    ) -> None:
        """Track `operation`. When it has completed, `complete` creates the result.

        For tensors on a `cuda_device`, an operation has completed when the current stream waits for
        it. The host does not wait for the device.
        """
        self._cuda_device = cuda_device
        self._operation: _core.Handle | None = operation
        self._complete: Callable[[_core.Handle], Outcome] | None = complete
        self._outcome: Outcome = None

    @outside_graph
    def done(self) -> bool:
        """Return whether wait() would return or raise without blocking."""
        operation = self._operation
        if operation is None:
            return True
        return operation.done() if self._cuda_device is None else operation.launched()

    @outside_graph
    def wait(self) -> Outcome:
        """Wait for the operation and return its result. Later calls return the same result."""
        operation, complete = self._operation, self._complete
        if operation is not None and complete is not None:
            if self._cuda_device is None:
                operation.wait()
            else:
                operation.wait_on_stream(current_stream(self._cuda_device))
            with shared.finishing:
                if self._complete is not None:
                    self._outcome = complete(operation)
                    self._operation = self._complete = None
        return self._outcome

    def __call__(self) -> Outcome:
        """Call wait(). In Horovod, sparse_allreduce_async() returns a function to call."""
        return self.wait()

    def then(self, change: Callable[[Outcome], Outcome]) -> Handle:
        """Apply `change` to the result before it is returned. Call this before the first wait()."""
        complete = self._complete
        assert complete is not None
        self._complete = lambda operation: change(complete(operation))
        return self


@outside_graph
def poll(handle: Handle) -> bool:
    """Return whether an operation has completed, so that synchronize() would not block.

    Args:
        handle: the result of an _async function.

    Returns:
        True if the operation has completed or failed.

    Raises:
        ValueError: the argument is not a handle.
    """
    if isinstance(handle, Handle):
        return handle.done()
    raise _unknown(handle)


@outside_graph
def synchronize(handle: Handle) -> Outcome:
    """Wait for an operation and return its result.

    Args:
        handle: the result of an _async function.

    Returns:
        The result of the function of the same name without _async. Later calls return the same
        result. CUDA tensors are ready for work that is subsequently queued on the current stream.

    Raises:
        ValueError: the argument is not a handle.
        MismatchError: the ranks' calls do not match (shapes, dtypes, op, root). All ranks raise it,
            and further operations work.
        RankFailedError: a rank died or left. Its process sets can no longer be used.
        HorovodInternalError: any other failure, such as a concurrent hvd.shutdown().
    """
    if isinstance(handle, Handle):  # inlined: a call would cost as much as the rest
        return handle.wait()
    raise _unknown(handle)


def _unknown(handle: object) -> ValueError:
    return ValueError(f"unknown handle {handle!r}: expected the result of an _async function")
