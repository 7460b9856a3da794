"""Point-to-point messages: the common part of all bindings' sends and receives."""

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
    """Tag spaces. A message in one never matches a receive in another."""

    TENSORS = 0
    GRADIENTS = 1  # of tensors sent with the same tag
    OBJECT_HEADERS = 2
    OBJECTS = 3  # tagged with the numbers in the headers
    GROUPS = 4  # of torch.distributed process groups
    GROUP_BARRIERS = 5  # of monitored_barrier()
    SNAPSHOTS = 6  # of elastic states


class Source(Enum):
    """Sources of a receive other than a single rank."""

    ANY = "any rank"


# Not None, which users may pass by mistake.
ANY: Final = Source.ANY


class Place(NamedTuple):
    """The memory that a message is sent from or received into."""

    address: int
    dtype: DataType
    elements: int
    owner: object  # of the memory
    device: Device | None = None  # the location of the memory; None: the host


class Prepared(NamedTuple):
    """A validated send or receive that can be started."""

    message: MessageArg
    is_send: bool
    owner: object  # of the memory

    def start(self) -> _core.Handle:
        """Start the operation. The handle of a receive returns the sender's rank."""
        return current_runtime().start_message(self.message, self.is_send, False, self.owner)

    def run(self) -> int:
        """Run the operation and wait for it. Return the sender's rank."""
        return current_runtime().run_message(self.message, self.is_send, self.owner)


class View(Generic[T]):
    """A message received without a copy: the result of recv_view().

        with hvd.recv_view((64, 128), dtype, src=0) as tensor:
            use(tensor)

    The sender's send() waits until the view is released: by release(), at the end of the `with`
    block, or when the last tensor that refers to it is freed. Data that is read later may have
    changed.
    """

    def __init__(self, message: _core.MessageView, tensor: T) -> None:
        """`tensor` refers to the message's memory."""
        self._message = message
        self._tensor: T | None = tensor

    @property
    def tensor(self) -> T:
        """The message, for reading only. Raises ValueError after release()."""
        if self._tensor is None:
            raise ValueError("the view has been released: its memory belongs to the sender again")
        return self._tensor

    @property
    def source(self) -> int:
        """The global rank of the sender."""
        return self._message.source

    def release(self) -> None:
        """Return the memory to the sender, which may then modify it. Later calls have no effect.

        Raises:
            RankFailedError: a rank of the process set was lost while the message was in use. The
                sender may have continued and modified it.
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
        """Release the message."""
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
    """Prepare to send the memory at a place to the global rank `dst`."""
    message = _message(place, check_peer("dst", dst, process_set), tag, process_set, channel)
    return Prepared(message, True, place.owner)


def receiving(
    place: Place,
    src: int | Source,
    tag: int,
    process_set: ProcessSet,
    channel: Channel = Channel.TENSORS,
) -> Prepared:
    """Prepare to receive into a place from the global rank `src` or from ANY."""
    message = _message(place, check_source(src, process_set), tag, process_set, channel)
    return Prepared(message, False, place.owner)


def receive_view(
    dtype: DataType, elements: int, nbytes: int, src: int | None, tag: int, process_set: ProcessSet
) -> _core.MessageView:
    """Receive `elements` elements from the global rank `src` (None: any rank) without a copy."""
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
    """Return `rank`, a global rank even in a process set.

    Raises ValueError if the rank is not in the set or this process may not use the set, TypeError
    if it is not a number.
    """
    if rank is None:
        hint = ": recv_any() receives from any rank" if argument == "src" else ""
        raise TypeError(f"{argument}=None is not a rank{hint}")
    return check_member(argument, rank, process_set)


def check_source(src: int | Source, process_set: ProcessSet) -> int:
    """Return the peer of a receive like check_peer(); ANY_RANK for ANY."""
    if isinstance(src, Source):
        return ANY_RANK
    return check_peer("src", src, process_set)


def check_tag(tag: int) -> int:
    """Return the tag. Raises ValueError if it is out of range, TypeError if not an integer."""
    number = index(tag)
    if not 0 <= number <= _MAX_TAG:
        raise ValueError(f"tag={tag} is not between 0 and 2**62 - 1")
    return number
