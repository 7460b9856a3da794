"""Handle: an enqueued operation."""

from __future__ import annotations

from typing import Any

from horoscale._core._binding import ffi, lib
from horoscale._core._in_flight import Handle as BareHandle
from horoscale._core.errors import check
from horoscale._core.memory import DeviceBuffer, OwnedBuffer


class Handle(BareHandle):
    """An enqueued operation. Only one thread at a time may use it.

    No Python code runs while it is created, waited for or freed, where a Ctrl-C would be lost.
    """

    __slots__ = ()

    @property
    def pointer(self) -> Any:
        """The library's pointer, valid as long as this object."""
        return ffi.cast("hs_handle *", self.address)

    def output(self, index: int) -> OwnedBuffer:
        """Take result `index` of an operation whose result the library allocated, at most once."""
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
        """Return the operation's integer result (see hs_result in the C header)."""
        return int(lib.hs_result(self.pointer))
