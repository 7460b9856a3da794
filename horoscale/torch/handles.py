"""Handle: an operation that was started and whose result may not be there yet."""

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
    """What the _async functions return. Pass it to synchronize() once the result is needed.

    The operation runs whether or not anybody waits for it, and its tensors are kept alive
    meanwhile. Several threads may wait for it.
    """

    __slots__ = ("_complete", "_cuda_device", "_operation", "_outcome")

    def __init__(
        self,
        operation: _core.Handle,
        complete: Callable[[_core.Handle], Outcome],
        cuda_device: int | None = None,
    ) -> None:
        """Follow `operation`; `complete` makes its result once it is done.

        With tensors on a `cuda_device` that is: once the current stream waits for it. The host does
        not wait for the device.
        """
        self._cuda_device = cuda_device
        self._operation: _core.Handle | None = operation
        self._complete: Callable[[_core.Handle], Outcome] | None = complete
        self._outcome: Outcome = None

    @outside_graph
    def done(self) -> bool:
        """Return whether wait() would return (or raise) at once."""
        operation = self._operation
        if operation is None:
            return True
        return operation.done() if self._cuda_device is None else operation.launched()

    @outside_graph
    def wait(self) -> Outcome:
        """Wait for the operation and return its result; the same again when called again."""
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
        """Do wait(): Horovod's sparse_allreduce_async() gives a function to call."""
        return self.wait()

    def then(self, change: Callable[[Outcome], Outcome]) -> Handle:
        """Have the result changed before it is returned. For use before the first wait()."""
        complete = self._complete
        assert complete is not None
        self._complete = lambda operation: change(complete(operation))
        return self


@outside_graph
def poll(handle: Handle) -> bool:
    """Return whether an operation is done, so that synchronize() would return without waiting.

    Args:
        handle: what an _async function returned.

    Returns:
        True if it is done, well or not.

    Raises:
        ValueError: this is not a handle.
    """
    if isinstance(handle, Handle):
        return handle.done()
    raise _unknown(handle)


@outside_graph
def synchronize(handle: Handle) -> Outcome:
    """Wait for an operation and return its result.

    Args:
        handle: what an _async function returned.

    Returns:
        What the function of the same name without _async returns. Waiting again returns it again.
        CUDA tensors are ready for what the current stream is given from now on.

    Raises:
        ValueError: this is not a handle.
        MismatchError: the ranks contradict each other (shapes, dtypes, op, root); they all get this
            error, and further operations work.
        RankFailedError: a rank died or left; its process sets can't be used any longer.
        HorovodInternalError: any other failure, such as a concurrent hvd.shutdown().
    """
    if isinstance(handle, Handle):  # not by a function, whose call costs as much as all of this
        return handle.wait()
    raise _unknown(handle)


def _unknown(handle: object) -> ValueError:
    return ValueError(f"unknown handle {handle!r}: expected what an _async function returned")
