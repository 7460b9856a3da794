"""Messages: sends and receives as structures of the C ABI, and views of received messages."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from horoscale._core._binding import ffi, lib
from horoscale._core.errors import check
from horoscale._core.handle import Handle
from horoscale._core.memory import OwnedBuffer
from horoscale._core.request import Device
from horoscale._core.types import DataType

ANY_RANK = -1


class MessageArg(NamedTuple):
    """A message within a process set: its peer, its tag and its memory."""

    peer: int  # global rank, or ANY_RANK for a receive
    tag: int
    channel: int  # of tags
    address: int  # of contiguous memory
    dtype: DataType
    elements: int
    process_set: int = 0
    device: Device | None = None  # device of the memory; None: the host


class PreparedMessage:
    """A message that is sent or received repeatedly. Any thread may use it.

    `start(keep_alive, memory, will_wait)` starts one with this host memory and returns its handle.
    Other arguments and exceptions are those of Runtime.start_message(). `run(keep_alive, memory,
    timeout)` also waits for it, and returns the handle's result().
    """

    __slots__ = ("_described", "run", "start")

    def __init__(
        self, message: MessageArg, start: Callable[..., Handle], run: Callable[..., int]
    ) -> None:
        """Describe it. `start` and `run` are an InFlight's functions for a send or a receive."""
        self._described = MessageRoom()
        self._described.describe(message, False)
        address = self._described.address
        self.start: Callable[[object, int, bool], Handle] = partial(start, address)
        self.run: Callable[[object, int, float | None], int] = partial(run, address)


class MessageRoom:
    """Memory for the library's description of a message."""

    def __init__(self) -> None:
        """Create the structures."""
        self.pointer: Any = ffi.new("hs_message *")
        self.pointer.struct_size = ffi.sizeof("hs_message")
        self.address = int(ffi.cast("uintptr_t", self.pointer))
        self._device = ffi.new("hs_device *")

    def describe(self, message: MessageArg, will_wait: bool, is_view: bool = False) -> None:
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
        pointer.is_view = is_view
        device = message.device
        if device is None:
            pointer.device = ffi.NULL
            return
        pointer.device = self._device
        self._device.cuda_device = device.cuda_device
        self._device.stream = ffi.cast("void *", device.stream)


class ThreadsMessageRoom(threading.local, MessageRoom):
    """A MessageRoom for each thread."""


class MessageView:
    """A received message in the sender's memory, or a copy if that is not accessible.

    The sender gets the memory back when release() is called, or when no object created from
    `memory` is left.
    """

    __slots__ = ("_handle", "_runtime", "memory", "source")

    def __init__(self, runtime: object, handle: Handle, nbytes: int) -> None:
        """Wrap a completed receive."""
        self.source = handle.result()
        self._runtime = runtime
        self._handle = handle
        data = ffi.cast("char *", lib.hs_view(handle.pointer))
        # The bound method keeps the handle alive; calling it in the end has no effect.
        self.memory = OwnedBuffer(ffi.gc(data, (handle,).count), nbytes)

    def release(self) -> None:
        """Return the message's memory to the sender. Later calls do nothing.

        Raises RankFailedError if a rank of the set was lost in the meantime.
        """
        check(lib.hs_release(self._runtime, self._handle.pointer))
