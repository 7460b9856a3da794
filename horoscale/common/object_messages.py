"""Messages of picklable objects.

An object is two messages: its content, under a number that its sender has given no other one, and a
header with that number, under the tag of the user. So nothing that happens to one object, and no
other thread, can have a header and a content taken for each other that don't belong together.
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

_numbers = count()  # of the objects that this process has sent


def send_object(
    obj: Any, dst: int, tag: int = 0, process_set: ProcessSet = global_process_set
) -> None:
    """Send a picklable object to one rank, which calls recv_object().

    Between hosts nobody can change it on the way. Unless it is small, this waits until it is
    received.

    Args:
        obj: what cloudpickle can serialise.
        dst: the global rank that it is for.
        tag: tells objects between the same two ranks apart; from 0.
        process_set: both ranks belong to it.

    Raises:
        TypeError, ValueError: before hvd.init(), or rank, tag or process set are wrong.
        RankFailedError: a rank of the process set died or left.
        HorovodInternalError: another failure, such as hvd.shutdown() meanwhile.
    """
    content = cloudpickle.dumps(obj)
    number = next(_numbers)
    header = array("q", [len(content), number])
    # The content first: no header promises what a Ctrl-C between the two has kept from being sent.
    messages = [
        sending(_bytes_of(content), dst, number, process_set, Channel.OBJECTS),
        sending(_bytes_of(header), dst, tag, process_set, Channel.OBJECT_HEADERS),
    ]
    wait_for_all([message.start() for message in messages])


def recv_object(src: int, tag: int = 0, process_set: ProcessSet = global_process_set) -> Any:
    """Return the next object that a rank sends here by send_object(), with this tag.

    A call that is ended by Ctrl-C has taken no object: the next one returns it.

    Args:
        src: the global rank that sends it.
        tag: as send_object() is given it.
        process_set: both ranks belong to it.

    Raises:
        TypeError, ValueError: before hvd.init(), or rank, tag or process set are wrong.
        RankFailedError: a rank of the process set died or left.
        HorovodInternalError: another failure, such as hvd.shutdown() meanwhile.
    """
    incoming = _Incoming(src, tag, process_set)
    # A thread goes on with what its last such call was interrupted in.
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
    """An object that is received. A Ctrl-C at any time loses nothing of it."""

    def __init__(self, src: int, tag: int, process_set: ProcessSet) -> None:
        self._source = src, process_set
        self._header = array("q", [0, 0])
        place = _bytes_of(self._header)
        self._receive_header = receiving(place, src, tag, process_set, Channel.OBJECT_HEADERS)
        self._content = bytearray()
        self._handles: list[_core.Handle] = []  # of the header, then of the content

    def wait(self) -> bytearray:
        """Wait for the object; go on with that if an earlier call was interrupted."""
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


at_removal(_forget_set)  # of a set that has failed: removal waits for what is pending
job.at_end(_incoming.clear)


def _bytes_of(buffer: bytes | bytearray | array[int]) -> Place:
    return Place(address_of(buffer), DataType.UINT8, memoryview(buffer).nbytes, buffer)
