"""Links: how tensors get from one stage to the next, or back.

Each hand-over is a header of fixed size (how many tensors, of which types and shapes) and one
message for each tensor, all with one tag, so that they come in this order. A sender copies its
tensors into slots of shared memory and goes on; a receiver on the same host reads them there. From
another host they have to travel: that begins before they are needed, where prepare() is called.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

import torch

from horoscale._core import HorovodInternalError
from horoscale.common.messages import View
from horoscale.common.process_sets import ProcessSet
from horoscale.torch.buckets import empty_shared
from horoscale.torch.handles import Handle
from horoscale.torch.messages import recv, recv_async, recv_view, send_async
from horoscale.torch.parallel.pipeline.errors import PipelineError
from horoscale.torch.tensors import data_type, dtype_of

_WORDS = 64  # of a header
_TENSORS, _NOTHING, _FAILED = range(3)
_ABSENT = -1  # in place of a dtype
_REASON_BYTES = (_WORDS - 2) * 8

# A stage's outputs, or their gradients; None for what has no gradient.
Tensors: TypeAlias = Sequence["torch.Tensor | None"]


class Parcel:
    """What has come over a link: tensors in memory that may be the sender's, until release()."""

    def __init__(
        self,
        tensors: Tensors,
        differentiable: Sequence[bool] = (),
        views: Sequence[View[torch.Tensor]] = (),
    ) -> None:
        """`differentiable` tells which tensors the sender wants the gradients of."""
        self.tensors = tuple(tensors)
        self.differentiable = tuple(differentiable)
        self._views = list(views)

    @property
    def borrowed(self) -> set[int]:
        """The addresses of the memory that release() gives back."""
        return {view.tensor.untyped_storage().data_ptr() for view in self._views}

    def release(self) -> None:
        """Give the memory back: nothing reads the tensors any more."""
        self.tensors = ()
        views, self._views = self._views, []
        for view in views:
            view.release()


class Link(Protocol):
    """Both ends of a link, of which a rank mostly uses one."""

    def send(self, tensors: Tensors, differentiable: Sequence[bool]) -> None:
        """Hand tensors over, which may be changed afterwards. Does not wait for the receiver."""

    def skip(self) -> None:
        """Hand over that there is nothing to compute."""

    def fail(self, reason: str) -> None:
        """Have the receiver raise PipelineError."""

    def prepare(self) -> None:
        """Let what is handed over next come while this rank does something else."""

    def receive(self) -> Parcel | None:
        """Wait for what is handed over next; None if it was skip()."""


class Loop:
    """A link inside one rank."""

    def __init__(self) -> None:
        """Begin empty."""
        self._parcels: deque[Parcel | None] = deque()

    def send(self, tensors: Tensors, differentiable: Sequence[bool]) -> None:
        """Hand tensors over as they are."""
        self._parcels.append(Parcel(tensors, differentiable))

    def skip(self) -> None:
        """Hand over that there is nothing to compute."""
        self._parcels.append(None)

    def fail(self, reason: str) -> None:
        """Do nothing: the receiver is the rank that has failed."""

    def prepare(self) -> None:
        """Do nothing: all is here."""

    def receive(self) -> Parcel | None:
        """Return what was handed over next."""
        return self._parcels.popleft()


class _Slot:
    """A piece of shared memory, and the send that reads it."""

    def __init__(self, nbytes: int) -> None:
        try:
            self.memory = empty_shared(nbytes, dtype=torch.uint8)
        except HorovodInternalError as error:  # of this rank alone: the others have to be told
            raise MemoryError(f"what the next stage gets has no room: {error}") from error
        self.taken = False
        self.handle: Handle | None = None

    def nbytes(self) -> int:
        """Return its size."""
        return self.memory.numel()

    def free(self) -> bool:
        """Tell whether it may be written. Raises what went wrong with the send."""
        if self.handle is not None and self.handle.done():
            self.handle.wait()
            self.handle = None
            self.taken = False
        return not self.taken


class Ring:
    """Slots that are used again once they have been read, as many as are needed at once."""

    def __init__(self) -> None:
        """Begin without any."""
        self._slots: list[_Slot] = []

    def __len__(self) -> int:
        return len(self._slots)

    def take(self, tensor: torch.Tensor) -> tuple[_Slot, torch.Tensor]:
        """Copy a tensor into a free slot; return the slot and the copy.

        The slot is free again once the send is done that its handle is set to.
        """
        nbytes = tensor.numel() * tensor.element_size()
        free = sorted((one for one in self._slots if one.free()), key=_Slot.nbytes)
        slot = next((one for one in free if one.nbytes() >= nbytes), None)
        if slot is None:
            if free:  # too small, all of them: a larger one takes the place of the smallest
                self._slots.remove(free.pop(0))
            slot = _Slot(nbytes)
            self._slots.append(slot)
        slot.taken = True
        copy = slot.memory[:nbytes].view(tensor.dtype).view(tensor.shape)
        copy.copy_(tensor)
        return slot, copy


class Remote:
    """A link to another rank."""

    def __init__(self, peer: int, tag: int, process_set: ProcessSet, near: bool) -> None:
        """Link to the global rank `peer`, which has made the same link to this one.

        `near`: it is on the same host.
        """
        self._where = (peer, tag, process_set)
        self._near = near
        self._ring = Ring()
        self._sent_headers: deque[Handle] = deque()
        self._header: Handle | None = None  # of what comes next, where prepare() was called
        self._arriving: list[_Arriving] | None = None  # its tensors

    def send(self, tensors: Tensors, differentiable: Sequence[bool]) -> None:
        """Copy tensors to shared memory and start to send them."""
        words = _encode(tensors, differentiable)
        # All copies before the header, which announces them: memory may run out.
        taken = [
            self._ring.take(tensor.detach())
            for tensor in tensors
            if tensor is not None and tensor.numel()
        ]
        self._start_header(words)
        for slot, copy in taken:
            slot.handle = send_async(copy, *self._where)

    def skip(self) -> None:
        """Send that there is nothing to compute."""
        self._start_header([_NOTHING])

    def fail(self, reason: str) -> None:
        """Have the receiver raise PipelineError, whatever it waits for on this link."""
        text = reason.encode()[:_REASON_BYTES].decode(errors="ignore").encode()
        padded = text.ljust(_REASON_BYTES, b"\0")
        words = torch.frombuffer(bytearray(padded), dtype=torch.int64).tolist()
        self._start_header([_FAILED, len(text), *words])

    def _start_header(self, words: list[int]) -> None:
        while self._sent_headers and self._sent_headers[0].done():
            self._sent_headers.popleft().wait()
        header = torch.tensor(words + [0] * (_WORDS - len(words)))
        self._sent_headers.append(send_async(header, *self._where))

    def prepare(self) -> None:
        """Start to receive what comes next, as far as is known what that is."""
        if self._near:
            return  # its tensors are read where they are
        if self._header is None:
            self._header = recv_async(torch.empty(_WORDS, dtype=torch.int64), *self._where)
        elif self._arriving is None and self._header.done():
            self._arriving = self._start_tensors(self._header.wait())

    def receive(self) -> Parcel | None:
        """Wait for the next header, then for the tensors that it announces."""
        if self._header is None:
            header = recv(torch.empty(_WORDS, dtype=torch.int64), *self._where)
        else:
            header = self._header.wait()
        arriving, self._header, self._arriving = self._arriving, None, None
        kind, number = header[:2].tolist()
        if kind == _NOTHING:
            return None
        if kind == _FAILED:
            raise PipelineError(header[2:].numpy().tobytes()[:number].decode(errors="replace"))
        announced = _decode(header)
        differentiable = [one.differentiable for one in announced]
        if self._near:
            return self._view(announced, differentiable)
        tensors = self._start_tensors(header) if arriving is None else arriving
        return Parcel([one.wait() for one in tensors], differentiable)

    def _view(self, announced: Sequence[_Announced], differentiable: Sequence[bool]) -> Parcel:
        tensors: list[torch.Tensor | None] = []
        views = []
        for dtype, _, shape in announced:
            if dtype is None:
                tensors.append(None)
            elif 0 in shape:
                tensors.append(torch.empty(shape, dtype=dtype))
            else:
                views.append(recv_view(shape, dtype, *self._where))
                tensors.append(views[-1].tensor)
        return Parcel(tensors, differentiable, views)

    def _start_tensors(self, header: torch.Tensor) -> list[_Arriving]:
        """Start to receive the tensors that a header announces, if it does."""
        if header[0] != _TENSORS:
            return []
        return [self._start(one) for one in _decode(header)]

    def _start(self, announced: _Announced) -> _Arriving:
        if announced.dtype is None:
            return _Arriving(None)
        tensor = torch.empty(announced.shape, dtype=announced.dtype)
        return _Arriving(tensor, recv_async(tensor, *self._where) if tensor.numel() else None)


class _Arriving(NamedTuple):
    """A tensor that is being received."""

    tensor: torch.Tensor | None
    handle: Handle | None = None

    def wait(self) -> torch.Tensor | None:
        """Return the tensor once it is there."""
        if self.handle is not None:
            self.handle.wait()
        return self.tensor


class _Announced(NamedTuple):
    """A tensor, as its header tells of it."""

    dtype: torch.dtype | None  # None: there is no tensor
    differentiable: bool
    shape: tuple[int, ...]


def _encode(tensors: Tensors, differentiable: Sequence[bool]) -> list[int]:
    words = [_TENSORS, len(tensors)]
    for tensor, wanted in zip(tensors, differentiable, strict=True):
        if tensor is None:
            words.append(_ABSENT)
        else:
            words += [int(data_type(tensor.dtype)), wanted, tensor.dim(), *tensor.shape]
    if len(words) > _WORDS:
        raise ValueError(
            f"a stage hands over {len(tensors)} tensors, more than a header has room for: join some"
        )
    return words


def _decode(header: torch.Tensor) -> list[_Announced]:
    _, number, *words = header.tolist()
    announced = []
    at = 0
    for _ in range(number):
        if words[at] == _ABSENT:
            announced.append(_Announced(None, False, ()))
            at += 1
            continue
        dtype, wanted, dimensions = words[at : at + 3]
        shape = tuple(words[at + 3 : at + 3 + dimensions])
        announced.append(_Announced(dtype_of(dtype), bool(wanted), shape))
        at += 3 + dimensions
    return announced
