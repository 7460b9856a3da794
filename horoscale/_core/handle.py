"""Handle: one operation that was enqueued."""

from __future__ import annotations

from typing import Any

from horoscale._core._binding import ffi, lib
from horoscale._core._in_flight import Handle as InFlightHandle
from horoscale._core.errors import check
from horoscale._core.memory import DeviceBuffer, OwnedBuffer


class Handle(InFlightHandle):
    """One operation that is enqueued. One thread at a time may use it.

    It is made, waited for and freed without a step of Python, in which a Ctrl-C would be lost.
    """

    __slots__ = ()

    @property
    def pointer(self) -> Any:
        """What the library gave, which lives as long as this object."""
        return ffi.cast("hs_handle *", self.address)

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
