"""Messages: sends and receives as structures of the C ABI, one for each thread to use again."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

from horoscale._core._binding import ffi
from horoscale._core.types import DataType

ANY_RANK = -1


class MessageArg(NamedTuple):
    """One message of a process set's: whom it goes to or comes from, and what lies where."""

    peer: int  # global rank; of a receive also ANY_RANK
    tag: int
    channel: int  # of tags
    address: int  # of contiguous memory
    dtype: DataType
    elements: int
    process_set: int = 0


class MessageRoom(threading.local):
    """Where a thread describes its messages to the library."""

    def __init__(self) -> None:
        """Make the structures."""
        self.pointer: Any = ffi.new("hs_message *")
        self.pointer.struct_size = ffi.sizeof("hs_message")
        self.out = ffi.new("hs_handle **")

    def describe(self, message: MessageArg, will_wait: bool) -> None:
        """Fill in the structure."""
        pointer = self.pointer
        pointer.process_set = message.process_set
        pointer.peer = message.peer
        pointer.tag = message.tag
        pointer.channel = message.channel
        pointer.dtype = message.dtype
        pointer.count = message.elements
        pointer.memory = ffi.cast("void *", message.address)
        pointer.will_wait = will_wait
