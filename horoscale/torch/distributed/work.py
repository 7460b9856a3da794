"""Work: an operation of a process group, with the interface of torch.distributed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import Work

from horoscale import _core
from horoscale._core import MismatchError
from horoscale.torch.distributed import completion, devices
from horoscale.torch.distributed.errors import GroupTimeoutError


class Operation(Work):
    """An operation of a group. Any thread may use it.

    Results that the library cannot write directly (copies into lists of tensors) are available
    after wait(), or when the future has a value.
    """

    def __init__(
        self,
        what: tuple[object, ...],
        handles: Sequence[_core.Handle],
        results: list[torch.Tensor],
        timeout: float | None,
        finish: Callable[[], None] | None = None,
        queue: object = None,
        on_late: Callable[[], None] | None = None,
        source: Callable[[], int] | None = None,
        device: int | None = None,
    ) -> None:
        """Track `handles`, all of which must be done.

        `what`, a format and its arguments, names the operation in errors. `finish` is called when
        the operation is done, and `results` is the value of the future. `timeout` applies to a
        wait() without its own. Operations of one `queue` are done in order; None: in no queue.
        `on_late` is called if wait() times out. `source` returns the rank that a receive's message
        came from. For CUDA tensors on a `device`, wait() makes the current stream wait, and blocks
        the host only until the work has been submitted to the device.
        """
        super().__init__()
        self._what = what
        self._handles = handles
        self._results = results
        self._timeout = timeout
        self._finish = finish
        self._error: Exception | None = None
        self._settled = False
        self._lock = threading.RLock()  # a callback of finish() may wait again
        self._future: Any = None
        self._public_future: Any = None
        self._followed: threading.Event | None = None  # by the completion thread, until it is set
        self._on_late = on_late
        self._source = source
        self.device = device
        self._ready: Any = None  # on the device: an event after the operation
        self._kept: Sequence[_core.Handle] = handles if device is not None else ()
        self.queue = queue if queue is not None else self

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the operation and raise its error. Raises GroupTimeoutError after `timeout`.

        If None or zero, the timeout of the operation or else of the group applies.
        """
        seconds = timeout.total_seconds() if timeout else self._timeout
        followed = self._followed
        if followed is not None and not completion.is_current_thread():
            if not followed.wait(seconds):
                raise self._late(seconds)
        else:
            with self._lock:
                if not self._settled and not self._try_settle(seconds):
                    raise self._late(seconds)
        if self._error is not None:
            raise self._error
        self._reach_stream()
        return True

    def synchronize(self) -> None:
        """Call wait()."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether wait() would return or raise immediately."""
        if self._settled:
            return True
        if self._followed is not None:
            return self._followed.is_set()
        with self._lock:
            return self._settled or all(
                devices.is_ready(handle, self.device) for handle in self._handles
            )

    def is_success(self) -> bool:
        """Return whether the operation has succeeded."""
        if not self.is_completed():
            return False
        return self.exception() is None

    def exception(self) -> Exception | None:
        """Return the operation's error, or None if it is not done or has succeeded."""
        if self.is_completed():
            try:
                self.wait()
            except Exception as error:
                return error
        return None

    def result(self) -> list[torch.Tensor]:
        """Wait for the operation and return its results."""
        self.wait()
        return self._results

    def get_future(self) -> Any:
        """Return a future of the list of results.

        Python's set_exception() stores the error as a value, and C++ reads values without checking
        for that. Only the future of a callback that raised has a real error, so this returns such a
        future.
        """
        with self._lock:
            if self._public_future is None:
                self._future = devices.future_of(self.device)
                self._public_future = self._future.then(lambda done: done.value())
                if not self._settled and completion.is_current_thread():
                    # A callback that waits for this future would keep this thread from completing
                    # it.
                    self._try_settle(self._timeout)
                if self._settled:
                    self._tell_future()
                else:
                    self._followed = threading.Event()
                    completion.follow(self)
            return self._public_future

    def source_rank(self) -> int:
        """Return the rank in the group that sent the message of a completed receive."""
        return _source_rank(self._source)

    _source_rank = source_rank

    # Called by the completion thread.

    def advance(self, seconds: float) -> bool:
        """Wait for at most `seconds`. Return whether the operation is done and its future set."""
        with self._lock:
            if not self._settled and not self._try_settle(seconds):
                return False
        self._tell_future()
        return True

    def fail(self, error: Exception) -> None:
        """Give up the operation. Nobody will wait for it any longer."""
        with self._lock:
            if not self._settled:
                self._settle(error)
        self._tell_future()

    def _tell_future(self) -> None:
        future, self._future = self._future, None
        if self._followed is not None:
            self._followed.set()
        if future is None:
            return
        if self._error is None:
            self._reach_stream()
            future.set_result(self._results)
        else:
            future.set_exception(self._error)

    def _try_settle(self, seconds: float | None) -> bool:
        """Wait for the operation for at most `seconds`. Return whether it is done."""
        deadline = None if seconds is None else time.monotonic() + seconds
        error: Exception | None = None
        while self._handles:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                devices.wait(self._handles[0], self.device, left)
            except TimeoutError:
                return False
            except ValueError as failure:  # this rank's memory does not fit what others have sent
                error = error or MismatchError(str(failure))
            except Exception as failure:
                error = error or failure
            self._handles = self._handles[1:]
        if error is None and self._finish is not None:
            try:
                self._finish()
            except Exception as failure:
                error = failure
        self._settle(error)
        return True

    def _reach_stream(self) -> None:
        """Make this thread's current stream wait for a completed operation."""
        if self.device is not None and self._ready is not None:
            devices.wait_for(self._ready, self.device)

    def _settle(self, error: Exception | None) -> None:
        self._error = error
        if self.device is not None and error is None:
            self._ready = devices.mark(self.device)
        self._finish = None
        self._handles = ()
        self._settled = True

    def _late(self, seconds: float | None) -> GroupTimeoutError:
        if self._on_late is not None:
            self._on_late()
        return late(self._what, seconds)


def late(what: tuple[object, ...], seconds: float | None) -> GroupTimeoutError:
    """Return the error for an operation that timed out."""
    described = str(what[0]).format(*what[1:])
    return GroupTimeoutError(f"{described} is not done within its timeout of {seconds} s")


class Finished(Work):
    """An operation of a group that was executed by the call itself."""

    def __init__(
        self, results: list[torch.Tensor], source: Callable[[], int] | None = None
    ) -> None:
        """Store the results and the function that returns the sender's rank of a receive."""
        Work.__init__(self)
        self._results = results
        self._source = source

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return True."""
        return True

    def synchronize(self) -> None:
        """Do nothing."""

    def is_completed(self) -> bool:
        """Return True."""
        return True

    def is_success(self) -> bool:
        """Return True."""
        return True

    def exception(self) -> Exception | None:
        """Return None."""
        return None

    def result(self) -> list[torch.Tensor]:
        """Return the results."""
        return self._results

    def get_future(self) -> Any:
        """Return a future with the list of results."""
        future: Any = torch.futures.Future()
        future.set_result(self._results)
        return future

    def source_rank(self) -> int:
        """Return the rank in the group that sent a receive's message."""
        return _source_rank(self._source)

    _source_rank = source_rank


def _source_rank(source: Callable[[], int] | None) -> int:
    if source is None:
        raise RuntimeError("source rank: this is no receive")
    return source()
