"""Messages of picklable objects.

An object is sent as two messages: its content, under a number that is unique for the sender, and a
header with that number, under the user's tag. A header therefore never matches the content of
another object, regardless of failures and concurrent threads.
"""

from __future__ import annotations

import pickle
import threading
from array import array
from itertools import count
from typing import Any

import cloudpickle

from horoscale import _core
from horoscale._core import DataType, address_of
from horoscale.common import job
from horoscale.common.arguments import set_id
from horoscale.common.batches import wait_for_all
from horoscale.common.messages import Channel, Place, Prepared, receiving, sending
from horoscale.common.process_sets import ProcessSet, at_removal, global_process_set

_numbers = count()  # of the objects sent by this process


def send_object(
    obj: Any, dst: int, tag: int = 0, process_set: ProcessSet = global_process_set
) -> None:
    """Send a picklable object to one rank, which calls recv_object().

    Between hosts the object is protected against modification in transit. Unless it is small, this
    call waits until it is received.

    Args:
        obj: any object that cloudpickle can serialize.
        dst: the global rank of the receiver.
        tag: distinguishes objects between the same two ranks; at least 0.
        process_set: the set to which both ranks belong.

    Raises:
        TypeError, ValueError: before hvd.init(), or rank, tag or process set are invalid.
        RankFailedError: a rank of the process set died or left.
        HorovodInternalError: another failure, such as a concurrent hvd.shutdown().
    """
    content = cloudpickle.dumps(obj)
    number = next(_numbers)
    header = array("q", [len(content), number])
    # Send the content first: after a Ctrl-C in between, no header announces unsent content.
    messages = [
        sending(_bytes_of(content), dst, number, process_set, Channel.OBJECTS),
        sending(_bytes_of(header), dst, tag, process_set, Channel.OBJECT_HEADERS),
    ]
    wait_for_all([message.start() for message in messages])


def recv_object(src: int, tag: int = 0, process_set: ProcessSet = global_process_set) -> Any:
    """Return the next object that a rank sends to this one by send_object() with this tag.

    A call that Ctrl-C interrupts consumes no object: the next call returns it.

    Args:
        src: the global rank of the sender.
        tag: the tag that the sender passed to send_object().
        process_set: the set to which both ranks belong.

    Raises:
        TypeError, ValueError: before hvd.init(), or rank, tag or process set are invalid.
        RankFailedError: a rank of the process set died or left.
        HorovodInternalError: another failure, such as a concurrent hvd.shutdown().
    """
    incoming = _Incoming(src, tag, process_set)
    # A thread resumes the receive that was interrupted in its previous call.
    key = threading.get_ident(), set_id(process_set), src, tag
    incoming = _incoming.setdefault(key, incoming)
    try:
        content = incoming.wait()
    except Exception:
        _incoming.pop(key, None)
        raise
    _incoming.pop(key, None)
    return pickle.loads(content)


class _Incoming:
    """An object being received. A Ctrl-C at any time loses no part of it."""

    def __init__(self, src: int, tag: int, process_set: ProcessSet) -> None:
        self._source = src, process_set
        self._header = array("q", [0, 0])
        place = _bytes_of(self._header)
        self._receive_header = receiving(place, src, tag, process_set, Channel.OBJECT_HEADERS)
        self._content = bytearray()
        self._handles: list[_core.Handle] = []  # of the header, then of the content

    def wait(self) -> bytearray:
        """Wait for the object. Resume if an earlier call was interrupted."""
        if not self._handles:
            self._start(self._receive_header)
        self._handles[0].wait()
        if len(self._handles) == 1:
            size, number = self._header
            src, process_set = self._source
            self._content = bytearray(size)
            self._start(
                receiving(_bytes_of(self._content), src, number, process_set, Channel.OBJECTS)
            )
        self._handles[1].wait()
        return self._content

    def _start(self, receive: Prepared) -> None:
        job.current_runtime().start_receive(receive.message, receive.owner, self._handles)


_incoming: dict[tuple[int, int, int, int], _Incoming] = {}


def _forget_set(identity: int) -> None:
    for key in [key for key in _incoming if key[1] == identity]:
        _incoming.pop(key, None)


at_removal(_forget_set)  # only for a failed set: otherwise removal waits for operations
job.at_end(_incoming.clear)


def _bytes_of(buffer: bytes | bytearray | array[int]) -> Place:
    return Place(address_of(buffer), DataType.UINT8, memoryview(buffer).nbytes, buffer)
