"""Messages from one rank to another: what sends and receives of all bindings share."""

from __future__ import annotations

import contextlib
from enum import Enum, IntEnum
from operator import index
from types import TracebackType
from typing import Final, Generic, NamedTuple, TypeVar

from horoscale import _core
from horoscale._core import ANY_RANK, DataType, Device, MessageArg
from horoscale.common.arguments import check_member, set_id
from horoscale.common.job import current_runtime
from horoscale.common.process_sets import ProcessSet

T = TypeVar("T")
_MAX_TAG = 2**62 - 1


class Channel(IntEnum):
    """Spaces of tags: messages of one never meet receives of another."""

    TENSORS = 0
    GRADIENTS = 1  # of what was sent with the same tag
    OBJECT_HEADERS = 2
    OBJECTS = 3  # by numbers that the headers give
    GROUPS = 4  # those of torch.distributed's process groups
    GROUP_BARRIERS = 5  # what they tell each other in monitored_barrier()
    SNAPSHOTS = 6  # of elastic states


class Source(Enum):
    """What a receive may take messages of, where that isn't a rank."""

    ANY = "any rank"


# Not None, which users pass by mistake.
ANY: Final = Source.ANY


class Place(NamedTuple):
    """What a message is made of, or where it is received."""

    address: int
    dtype: DataType
    elements: int
    owner: object  # of the memory
    device: Device | None = None  # where that is; None: the host


class Prepared(NamedTuple):
    """A send or a receive that is known to be right, and can be started."""

    message: MessageArg
    is_send: bool
    owner: object  # of the memory

    def start(self) -> _core.Handle:
        """Start it. The result of a receive's handle is the rank that has sent."""
        return current_runtime().start_message(self.message, self.is_send, False, self.owner)

    def run(self) -> int:
        """Do it and wait; return the rank that has sent."""
        return current_runtime().run_message(self.message, self.is_send, self.owner)


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


def sending(
    place: Place,
    dst: int,
    tag: int,
    process_set: ProcessSet,
    channel: Channel = Channel.TENSORS,
) -> Prepared:
    """Prepare to send what is at a place to the global rank `dst`."""
    message = _message(place, check_peer("dst", dst, process_set), tag, process_set, channel)
    return Prepared(message, True, place.owner)


def receiving(
    place: Place,
    src: int | Source,
    tag: int,
    process_set: ProcessSet,
    channel: Channel = Channel.TENSORS,
) -> Prepared:
    """Prepare to receive to a place, from the global rank `src` or from ANY."""
    message = _message(place, check_source(src, process_set), tag, process_set, channel)
    return Prepared(message, False, place.owner)


def receive_view(
    dtype: DataType, elements: int, nbytes: int, src: int | None, tag: int, process_set: ProcessSet
) -> _core.MessageView:
    """Receive so many elements from the global rank `src`, or from any (None), where they are."""
    peer = check_source(ANY if src is None else src, process_set)
    place = Place(0, dtype, elements, None)
    message = _message(place, peer, tag, process_set, Channel.TENSORS)
    return current_runtime().receive_view(message, nbytes)


def _message(
    place: Place, peer: int, tag: int, process_set: ProcessSet, channel: Channel
) -> MessageArg:
    return MessageArg(
        peer,
        check_tag(tag),
        channel,
        place.address,
        place.dtype,
        place.elements,
        set_id(process_set),
        place.device,
    )


def check_peer(argument: str, rank: int, process_set: ProcessSet) -> int:
    """Return `rank`, a global rank also inside a process set.

    Raises ValueError if it is outside, or the set is not to be used; TypeError if it is no number.
    """
    if rank is None:
        hint = ": recv_any() receives from any rank" if argument == "src" else ""
        raise TypeError(f"{argument}=None is not a rank{hint}")
    return check_member(argument, rank, process_set)


def check_source(src: int | Source, process_set: ProcessSet) -> int:
    """Return the peer of a receive, as check_peer() does; ANY_RANK for ANY."""
    if isinstance(src, Source):
        return ANY_RANK
    return check_peer("src", src, process_set)


def check_tag(tag: int) -> int:
    """Return the tag; ValueError if it is none, TypeError if it is no integer."""
    number = index(tag)
    if not 0 <= number <= _MAX_TAG:
        raise ValueError(f"tag={tag} is not from 0 to 2**62 - 1")
    return number
