"""Messages from one rank to another: what sends and receives of all bindings share."""

from __future__ import annotations

import contextlib
import pickle
import threading
from array import array
from collections.abc import Callable, Sequence
from enum import IntEnum
from operator import index
from types import TracebackType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import cloudpickle

from horoscale import _core
from horoscale._core import ANY_RANK, DataType, Device, MessageArg, address_of
from horoscale.common.arguments import members_of, set_id
from horoscale.common.job import current_runtime
from horoscale.common.process_sets import ProcessSet, global_process_set

T = TypeVar("T")
_MAX_TAG = 2**62 - 1
_sending_object = threading.Lock()  # an object is two messages, which follow each other


class Channel(IntEnum):
    """Spaces of tags: messages of one never meet receives of another."""

    TENSORS = 0
    GRADIENTS = 1  # of what was sent with the same tag
    OBJECT_LENGTHS = 2
    OBJECTS = 3
    GROUPS = 4  # those of torch.distributed's process groups
    GROUP_BARRIERS = 5  # what they tell each other in monitored_barrier()
    SHARDS = 6  # of elastic states


class Place(NamedTuple):
    """What a message is made of, or where it is received."""

    address: int
    dtype: DataType
    elements: int
    owner: object  # of the memory
    device: Device | None = None  # where that is; None: the host


class View(Generic[T]):
    """A message that was received without a copy: what recv_view() returns.

        with hvd.recv_view((64, 128), dtype, src=0) as tensor:
            use(tensor)

    The sender's send() waits until it is released: by release(), at the end of the `with` block, or
    when the last tensor made of it goes. What is read from it later may have changed.
    """

    def __init__(self, message: _core.MessageView, tensor: T) -> None:
        """`tensor` is made of the message's memory."""
        self._message = message
        self._tensor: T | None = tensor

    @property
    def tensor(self) -> T:
        """What was sent, to be read. ValueError after release()."""
        if self._tensor is None:
            raise ValueError("the view has been released: its memory is the sender's again")
        return self._tensor

    @property
    def source(self) -> int:
        """The global rank that has sent it."""
        return self._message.source

    def release(self) -> None:
        """Give the message back to its sender, who may change it. Later calls do nothing.

        Raises:
            RankFailedError: a rank of the process set was lost while the message was seen: the
                sender may have gone on, and changed it.
        """
        self._tensor = None
        self._message.release()

    def __enter__(self) -> T:
        """Return the tensor."""
        return self.tensor

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Release it."""
        if error is None:
            self.release()
            return
        with contextlib.suppress(_core.HorovodInternalError):  # `error` is the cause
            self.release()


class P2POp(NamedTuple):
    """One send or receive of a batch().

    Args:
        op: the function: send, recv or recv_any (or what starts the same: send_async, …).
        tensor: what is sent, or received into.
        peer: the global rank that it is sent to, or received from; recv_any takes none.
        tag: tells messages between the same two ranks apart.
        process_set: both ranks belong to it.
    """

    op: Callable[..., Any]
    tensor: Any
    peer: int | None = None
    tag: int = 0
    process_set: ProcessSet = global_process_set


def start_send(
    place: Place,
    dst: int,
    tag: int,
    process_set: ProcessSet,
    channel: Channel = Channel.TENSORS,
) -> _core.Handle:
    """Start sending what is at a place to the global rank `dst`."""
    message = _message(place, "dst", dst, tag, process_set, channel)
    return current_runtime().start_message(message, True, False, place.owner)


def send_and_wait(
    place: Place,
    dst: int,
    tag: int,
    process_set: ProcessSet,
    channel: Channel = Channel.TENSORS,
) -> None:
    """Send what is at a place to the global rank `dst`."""
    message = _message(place, "dst", dst, tag, process_set, channel)
    current_runtime().run_message(message, True, place.owner)


def start_recv(
    place: Place,
    src: int | None,
    tag: int,
    process_set: ProcessSet,
    channel: Channel = Channel.TENSORS,
) -> _core.Handle:
    """Start receiving to a place, from the global rank `src` or from any (None).

    The handle's result is the rank that has sent.
    """
    message = _message(place, "src", src, tag, process_set, channel)
    return current_runtime().start_message(message, False, False, place.owner)


def recv_and_wait(
    place: Place,
    src: int | None,
    tag: int,
    process_set: ProcessSet,
    channel: Channel = Channel.TENSORS,
) -> int:
    """Receive to a place, from the global rank `src` or from any (None); return the sender."""
    message = _message(place, "src", src, tag, process_set, channel)
    return current_runtime().run_message(message, False, place.owner)


def receive_view(
    dtype: DataType, elements: int, nbytes: int, src: int | None, tag: int, process_set: ProcessSet
) -> _core.MessageView:
    """Receive so many elements from the global rank `src`, or from any (None), where they are."""
    message = _message(
        Place(0, dtype, elements, None), "src", src, tag, process_set, Channel.TENSORS
    )
    return current_runtime().receive_view(message, nbytes)


def _message(
    place: Place,
    argument: str,
    rank: int | None,
    tag: int,
    process_set: ProcessSet,
    channel: Channel,
) -> MessageArg:
    identity = set_id(process_set)
    peer = ANY_RANK if rank is None else check_peer(argument, rank, process_set)
    return MessageArg(
        peer,
        check_tag(tag),
        channel,
        place.address,
        place.dtype,
        place.elements,
        identity,
        place.device,
    )


def check_peer(argument: str, rank: int, process_set: ProcessSet) -> int:
    """Return `rank`, a global rank also inside a process set; ValueError if it is outside."""
    peer = index(rank)
    members = members_of(process_set)
    if peer not in members:
        raise ValueError(f"{argument}={peer} is not one of the ranks {members}")
    return peer


def check_tag(tag: int) -> int:
    """Return the tag; ValueError if it is none."""
    number = index(tag)
    if not 0 <= number <= _MAX_TAG:
        raise ValueError(f"tag={tag} is not from 0 to 2**62 - 1")
    return number


class Waitable(Protocol):
    """A handle of any binding."""

    def wait(self) -> Any:
        """Wait for the operation and return its result."""


def wait_for_all(handles: Sequence[Waitable]) -> list[Any]:
    """Wait for all of them, also if some fail; return their results or raise the first failure."""
    results: list[Any] = []
    failure: Exception | None = None
    for handle in handles:
        try:
            results.append(handle.wait())
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return results


def start_batch(
    operations: Sequence[P2POp],
    sends: Sequence[Callable[..., Any]],
    recvs: Sequence[Callable[..., Any]],
    recvs_any: Sequence[Callable[..., Any]],
) -> list[Any]:
    """Start all operations of a batch and return their handles.

    The last of each kind of functions is the one that starts it. All operations are looked at
    before the first one is started.
    """
    starts: list[Callable[[], Any]] = []
    for operation in operations:
        if not isinstance(operation, P2POp):
            raise TypeError(f"batch() takes a list of P2POp, not {operation!r}")
        rest = {"tag": operation.tag, "process_set": operation.process_set}
        if operation.op in recvs_any:
            starts.append(_bind(recvs_any[-1], (operation.tensor,), rest))
            continue
        kinds = [kind[-1] for kind in (sends, recvs) if operation.op in kind]
        if not kinds:
            raise ValueError(f"op={operation.op!r} is none of send, recv and recv_any")
        if operation.peer is None:
            raise ValueError("a send or recv of a batch needs a peer")
        starts.append(_bind(kinds[0], (operation.tensor, operation.peer), rest))
    return [start() for start in starts]


def _bind(
    function: Callable[..., Any], arguments: tuple[Any, ...], rest: dict[str, Any]
) -> Callable[[], Any]:
    return lambda: function(*arguments, **rest)


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
        ValueError: before hvd.init(), or rank, tag or process set are wrong.
        RankFailedError: a rank of the process set died or left.
        HorovodInternalError: another failure, such as hvd.shutdown() meanwhile.
    """
    content = cloudpickle.dumps(obj)
    length = array("q", [len(content)])
    with _sending_object:
        handles = [
            start_send(place, dst, tag, process_set, channel=channel)
            for place, channel in (
                (_bytes_of(length), Channel.OBJECT_LENGTHS),
                (_bytes_of(content), Channel.OBJECTS),
            )
        ]
    wait_for_all(handles)


def recv_object(src: int, tag: int = 0, process_set: ProcessSet = global_process_set) -> Any:
    """Return the next object that a rank sends here by send_object(), with this tag.

    Objects of one rank and tag are received by one thread at a time.

    Args:
        src: the global rank that sends it.
        tag: as send_object() is given it.
        process_set: both ranks belong to it.

    Raises:
        ValueError: before hvd.init(), or rank, tag or process set are wrong.
        RankFailedError: a rank of the process set died or left.
        HorovodInternalError: another failure, such as hvd.shutdown() meanwhile.
    """
    length = array("q", [0])
    recv_and_wait(_bytes_of(length), src, tag, process_set, Channel.OBJECT_LENGTHS)
    content = bytearray(length[0])
    recv_and_wait(_bytes_of(content), src, tag, process_set, Channel.OBJECTS)
    return pickle.loads(content)


def _bytes_of(buffer: bytes | bytearray | array[int]) -> Place:
    return Place(address_of(buffer), DataType.UINT8, memoryview(buffer).nbytes, buffer)
