"""Handle: one operation that was enqueued."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any

from horoscale._core._binding import ffi, lib
from horoscale._core.errors import check, last_error
from horoscale._core.memory import DeviceBuffer, OwnedBuffer

# Python runs signal handlers (Ctrl-C) only between two calls of C functions.
WAIT_SLICE_SECONDS = 0.2

# Every so many operations that begin look at older ones, so that dropped ones can't accumulate.
LOOK_AT_EVERY = 8


class Handle:
    """One operation that is enqueued. One thread at a time may use it."""

    __slots__ = ("_keep_alive", "_registry", "_runtime", "pointer")

    def __init__(self, keep_alive: object, runtime: object, registry: InFlight) -> None:
        """Keep memory, and the runtime from being freed, until the operation is done.

        Made before it is enqueued, so that nothing is lost where Ctrl-C comes right after; then
        own() gets what the library gave.
        """
        self.pointer: Any = ffi.NULL
        self._keep_alive = keep_alive
        self._runtime = runtime
        self._registry = registry
        # Not by a method: a call of Python's costs as much as all of this.
        handles = registry.handles
        handles[id(self)] = self
        if not len(handles) % LOOK_AT_EVERY:
            registry.look()

    def own(self, pointer: Any) -> None:
        """Take what the library gave.

        It is freed without a step of Python: a Ctrl-C that came within __del__() would be lost.
        """
        self.pointer = ffi.gc(pointer, lib.hs_handle_free)

    def done(self) -> bool:
        """Tell whether the operation is done, well or not."""
        return bool(lib.hs_poll(self.pointer))

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the operation is done; raise what went wrong with it.

        Raises TimeoutError when it is not done after `timeout` seconds (None: wait for ever). The
        calling thread drives the engine meanwhile; other Python threads can run.
        """
        # Another thread may shut the runtime down meanwhile, and let go of it everywhere else.
        runtime = self._runtime
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            seconds = WAIT_SLICE_SECONDS
            if deadline is not None:
                seconds = min(seconds, max(0.0, deadline - time.monotonic()))
            code = lib.hs_wait(self.pointer, seconds)
            if code != lib.HS_TIMEOUT:
                break
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"the operation is not done after {timeout} s")
        # The exception is made first: releasing memory may call the library again.
        error = None if code == lib.HS_OK else last_error(code)
        self.let_go()
        del runtime
        if error is not None:
            raise error

    def launched(self) -> bool:
        """Tell whether wait_on_stream() would return at once."""
        return bool(lib.hs_launched(self.pointer))

    def wait_on_stream(self, stream: int) -> None:
        """Make what is enqueued on a CUDA stream from now on wait for the operation.

        The host waits until the device has been given the operation's work, not until that is
        done: the tensors' memory is kept alive until then. `stream` is the stream's address. Raises
        what went wrong by then; what goes wrong on the device is told by later operations.
        """
        runtime = self._runtime
        address = ffi.cast("void *", stream)
        code = lib.HS_TIMEOUT
        while code == lib.HS_TIMEOUT:
            code = lib.hs_wait_on_stream(self.pointer, address, WAIT_SLICE_SECONDS)
        error = None if code == lib.HS_OK else last_error(code)
        del runtime
        if error is not None:
            raise error

    def let_go(self) -> None:
        """Give up, now that the operation is done or was refused, what it needed."""
        self._registry.handles.pop(id(self), None)
        self._keep_alive = None
        self._runtime = None

    def output(self, index: int) -> OwnedBuffer:
        """Take result `index` of an operation whose result the library allocated. Only once."""
        data = ffi.new("void **")
        nbytes = ffi.new("size_t *")
        check(lib.hs_output(self.pointer, index, data, nbytes))
        return OwnedBuffer.of_output(data[0], nbytes[0])

    def device_output(self, index: int) -> DeviceBuffer:
        """Take result `index` of an operation on CUDA tensors."""
        data = ffi.new("void **")
        nbytes = ffi.new("size_t *")
        check(lib.hs_output(self.pointer, index, data, nbytes))
        return DeviceBuffer(data[0], nbytes[0])

    def output_rows(self, index: int, members: int) -> list[int]:
        """Return the rows that each of the set's `members` contributed to output `index`."""
        rows = ffi.new("int64_t[]", members)
        check(lib.hs_output_rows(self.pointer, index, rows, members))
        return list(rows)

    def result(self) -> int:
        """Return the number that the operation gave (see hs_result in the C header)."""
        return int(lib.hs_result(self.pointer))


class InFlight:
    """The operations that may not be done: keeps their memory alive when the user drops the handle.

    An operation leaves when it is waited for; one that nobody waits for, when it is found done as
    later ones come. It is never out of here meanwhile, whatever other threads and signals do.
    """

    def __init__(self) -> None:
        """Begin with nothing in flight."""
        self.handles: OrderedDict[int, Handle] = OrderedDict()  # by id()

    def look(self) -> None:
        """Forget some of the operations that are done, of the oldest."""
        undone = 0
        for _ in range(2 * LOOK_AT_EVERY):
            undone += not self._reap_oldest()
            if undone == 2:
                break

    def reap(self) -> None:
        """Forget all operations that are done."""
        for _ in range(len(self.handles)):
            self._reap_oldest()

    def _reap_oldest(self) -> bool:
        """Forget the oldest operation if it is done; make it the newest if it is not."""
        try:
            oldest = next(iter(self.handles.values()))
            if oldest.done():
                oldest.let_go()
                return True
            self.handles.move_to_end(id(oldest))
        except (StopIteration, KeyError, RuntimeError):  # another thread has taken it
            pass
        return False
