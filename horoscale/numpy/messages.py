"""Point-to-point messages of arrays: send, recv and their variants."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from horoscale import _core
from horoscale.common.arguments import extents_of
from horoscale.common.batches import Kind, P2POp, run_batch
from horoscale.common.messages import (
    ANY,
    Place,
    Source,
    View,
    receive_view,
    receiving,
    sending,
)
from horoscale.common.prepared import prepared_message
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.numpy.arrays import (
    Array,
    address,
    adopt,
    contiguous,
    data_type,
    is_plain,
    need_writable,
)
from horoscale.numpy.handles import Handle

T = TypeVar("T")
Start: TypeAlias = Callable[[], Handle[T]]  # of a prepared message


def _place(array: Array) -> Place:
    return Place(address(array), data_type(array.dtype), array.size, array)


def _prepare_send(tensor: ArrayLike, dst: int, tag: int, process_set: ProcessSet) -> Start[None]:
    message = sending(_place(contiguous(tensor)), dst, tag, process_set)
    return lambda: Handle(message.start(), lambda _: None)


def _prepare_recv(tensor: Array, src: int, tag: int, process_set: ProcessSet) -> Start[Array]:
    return _prepare(tensor, src, tag, process_set, lambda array, _: array)


def _prepare_recv_any(tensor: Array, tag: int, process_set: ProcessSet) -> Start[int]:
    return _prepare(tensor, ANY, tag, process_set, lambda _, source: source)


def _prepare(
    tensor: Array,
    src: int | Source,
    tag: int,
    process_set: ProcessSet,
    result: Callable[[Array, int], T],
) -> Start[T]:
    """Prepare a receive. `result` creates the outcome from the array and the sender's rank."""
    array = need_writable(tensor, "a receive")
    working = contiguous(array)
    message = receiving(_place(working), src, tag, process_set)

    def finish(done: _core.Handle) -> T:
        return result(_received(array, working), done.result())

    return lambda: Handle(message.start(), finish)


def _recv_and_wait(tensor: Array, src: int | Source, tag: int, process_set: ProcessSet) -> int:
    if is_plain(tensor):
        handle = _start(False, tensor, src, tag, process_set)
        handle.wait()
        return handle.result()
    working = contiguous(need_writable(tensor, "a receive"))
    source = receiving(_place(working), src, tag, process_set).run()
    _received(tensor, working)
    return source


def _start(
    is_send: bool, array: Array, peer: int | Source, tag: int, process_set: ProcessSet
) -> _core.Handle:
    """Start a message with a plain array's memory. The caller then waits for it."""
    message = prepared_message(is_send, array.dtype, array.size, data_type, peer, tag, process_set)
    return message.start(array, address(array), True)


def _received(array: Array, working: Array) -> Array:
    if not array.flags.c_contiguous:  # the message was received into a copy
        array[...] = working
    return array


def send(
    tensor: ArrayLike, dst: int, tag: int = 0, process_set: ProcessSet = global_process_set
) -> None:
    """Send an array to one rank, which calls recv().

    Returns when the array may be modified. A large message waits for the matching receive; a small
    one does not (see docs/messages.md).

    Args:
        tensor: the array to send. An array that is not contiguous is copied.
        dst: the global rank of the receiver, which may be this rank.
        tag: a number of at least 0. Messages with the same tag between two ranks arrive in order.
        process_set: the set to which both ranks belong.

    Raises:
        TypeError, ValueError: before hvd.init(), or an argument is invalid.
        MismatchError: the receiver expects another dtype or number of elements; raised on these two
            ranks only (for a small message, on the receiver only).
        RankFailedError: a rank of the process set died or left.
        HorovodInternalError: another failure, such as a concurrent hvd.shutdown().
    """
    if is_plain(tensor):
        _start(True, tensor, dst, tag, process_set).wait()
    else:
        sending(_place(contiguous(tensor)), dst, tag, process_set).run()


def send_async(
    tensor: ArrayLike, dst: int, tag: int = 0, process_set: ProcessSet = global_process_set
) -> Handle[None]:
    """Start send() and return a handle immediately.

    Do not modify the array until the operation has completed.
    """
    return _prepare_send(tensor, dst, tag, process_set)()


def recv(
    tensor: Array, src: int, tag: int = 0, process_set: ProcessSet = global_process_set
) -> Array:
    """Receive the next message from one rank into an array, and return the array.

    Args:
        tensor: a writable array with the dtype and number of elements of the message.
        src: the global rank of the sender, which may be this rank.
        tag: the tag that the sender passed to send().
        process_set: the set to which both ranks belong.

    Raises:
        TypeError, ValueError: before hvd.init(), or an argument is invalid.
        MismatchError: the message has another dtype or number of elements; raised on these two
            ranks only.
        RankFailedError: a rank of the process set died or left.
        HorovodInternalError: another failure, such as a concurrent hvd.shutdown().
    """
    if is_plain(tensor):
        _start(False, tensor, src, tag, process_set).wait()
    else:
        _recv_and_wait(tensor, src, tag, process_set)
    return tensor


def recv_async(
    tensor: Array, src: int, tag: int = 0, process_set: ProcessSet = global_process_set
) -> Handle[Array]:
    """Start recv() and return a handle. The array contains the message after synchronize()."""
    return _prepare_recv(tensor, src, tag, process_set)()


def recv_any(tensor: Array, tag: int = 0, process_set: ProcessSet = global_process_set) -> int:
    """Receive the first message with this tag from any rank into an array; return its rank.

    Arguments and errors are those of recv(). If a rank has left the job cleanly, this raises
    RankFailedError once for each tag. The next call waits for the remaining ranks.
    """
    return _recv_and_wait(tensor, ANY, tag, process_set)


def recv_any_async(
    tensor: Array, tag: int = 0, process_set: ProcessSet = global_process_set
) -> Handle[int]:
    """Start recv_any() and return a handle immediately; its result is the sender's rank."""
    return _prepare_recv_any(tensor, tag, process_set)()


def recv_view(
    shape: int | Sequence[int],
    dtype: DTypeLike,
    src: int | None,
    tag: int = 0,
    process_set: ProcessSet = global_process_set,
) -> View[Array]:
    """Receive a message from one rank, if possible as a view of the sender's memory.

    A message of more than 16 KiB from an array of empty_shared() on this host is not copied: the
    view's array maps the sender's memory read-only, and send() waits until the view is released.
    Any other message is copied.

        with hvd.recv_view((64, 128), np.float32, src=0) as array:
            result = model(array)

    Args:
        shape: the shape of the array, with the message's number of elements.
        dtype: the dtype of the message.
        src: the global rank of the sender. None: any rank, as in recv_any().
        tag: the tag that the sender passed to send().
        process_set: the set to which both ranks belong.

    Returns:
        The view. Its `tensor` is the array, its `source` the sender's rank.

    Raises:
        TypeError, ValueError: before hvd.init(), or an argument is invalid.
        MismatchError, RankFailedError, HorovodInternalError: as in recv(). The view's release()
            raises RankFailedError, too.
    """
    element = np.dtype(dtype)
    extents = extents_of(shape)
    elements = math.prod(extents)
    nbytes = elements * element.itemsize
    message = receive_view(data_type(element), elements, nbytes, src, tag, process_set)
    array = adopt(message.memory, element, extents)
    array.flags.writeable = False
    return View(message, array)


def batch(operations: Sequence[P2POp]) -> list[Any]:
    """Start several sends and receives, wait for all of them, and return their results.

    All of them run concurrently, so ranks can send to each other without deadlock.

    Args:
        operations: a list such as [P2POp(hvd.send, x, 1), P2POp(hvd.recv, y, 1)].

    Returns:
        A list with the result of each operation: None for send, the array for recv, the sender's
        rank for recv_any.

    Raises:
        TypeError, ValueError: the list or an argument is invalid. No operation was started.
        MismatchError, RankFailedError, HorovodInternalError: the first failure, raised after all
            operations have ended.
    """
    return run_batch(operations, _KINDS)


_KINDS = (
    Kind((send, send_async), _prepare_send, is_send=True),
    Kind((recv, recv_async), _prepare_recv),
    Kind((recv_any, recv_any_async), _prepare_recv_any, takes_peer=False),
)
