"""Links: transfer tensors from one stage to the next, or back.

Each transfer is a frame: one message with all of its tensors. A sender copies them into a slot of
shared memory and continues; a receiver on the same host reads them there. A frame from another host
must travel: prepare() starts that before it is needed.

A receive must specify the size of the message. Both ends expect the size from earlier steps. If a
frame has another size, a message of the expected size says so, and the frame follows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from horoscale import _core
from horoscale._core import DataType, HorovodInternalError, MessageView
from horoscale.common.messages import receive_view
from horoscale.common.prepared import prepared_message
from horoscale.common.process_sets import ProcessSet
from horoscale.torch.buckets import empty_shared
from horoscale.torch.parallel.pipeline.errors import PipelineError
from horoscale.torch.parallel.pipeline.frames import (
    HEADER_BYTES,
    Described,
    Kind,
    Layout,
    Sizes,
    Tensors,
    bare_frame,
    describe,
    failed_frame,
    header_of,
    layout_in,
    read_header,
    reason_in,
    remember,
    write_header,
)
from horoscale.torch.tensors import data_type


class Parcel:
    """Tensors received over a link, in memory that may be the sender's, until release()."""

    def __init__(
        self,
        tensors: Tensors,
        differentiable: Sequence[bool] = (),
        view: MessageView | None = None,
    ) -> None:
        """`differentiable` says for which tensors the sender needs the gradients."""
        self.tensors = tuple(tensors)
        self.differentiable = tuple(differentiable)
        self._view = view

    @property
    def borrowed(self) -> set[int]:
        """The addresses of the tensors whose memory release() returns."""
        if self._view is None:
            return set()
        return {one.untyped_storage().data_ptr() for one in self.tensors if one is not None}

    def release(self) -> None:
        """Return the memory; the tensors must not be read any longer."""
        self.tensors = ()
        view, self._view = self._view, None
        if view is not None:
            view.release()


class Link(Protocol):
    """Both ends of a link. A rank usually uses only one of them."""

    def send(self, tensors: Tensors, differentiable: Sequence[bool]) -> None:
        """Send tensors, which may be modified afterwards. Does not wait for the receiver."""

    def skip(self) -> None:
        """Tell the receiver that there is nothing to compute."""

    def fail(self, reason: str) -> None:
        """Make the receiver raise PipelineError."""

    def prepare(self) -> None:
        """Start to receive the next frame in the background."""

    def receive(self) -> Parcel | None:
        """Wait for the next frame; return None if it is from skip()."""


class Loop:
    """A link inside one rank."""

    def __init__(self) -> None:
        """Create an empty link."""
        self._parcels: deque[Parcel | None] = deque()

    def send(self, tensors: Tensors, differentiable: Sequence[bool]) -> None:
        """Pass tensors on as they are."""
        self._parcels.append(Parcel(tensors, differentiable))

    def skip(self) -> None:
        """Tell the receiver that there is nothing to compute."""
        self._parcels.append(None)

    def fail(self, reason: str) -> None:
        """Do nothing: the receiver is the failed rank itself."""

    def prepare(self) -> None:
        """Do nothing: there is no transfer."""

    def receive(self) -> Parcel | None:
        """Return the next tensors."""
        return self._parcels.popleft()


class Slot:
    """A region of shared memory for a frame, and the send that reads it."""

    def __init__(self, nbytes: int) -> None:
        """Allocate memory; raise MemoryError if there is not enough."""
        try:
            with torch.inference_mode(False):  # steps reuse slots from evaluations
                self._memory = empty_shared(nbytes, dtype=torch.uint8)
        except HorovodInternalError as error:  # on this rank only; the others must be notified
            raise MemoryError(f"what the next stage gets has no room: {error}") from error
        self._described: tuple[Described, ...] | None = None
        self._places: list[torch.Tensor | None] = []
        self.frame = self._memory  # the part of it that is sent
        self.taken = False
        self.handle: _core.Handle | None = None

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self._memory.numel()

    def free(self) -> bool:
        """Return whether it may be overwritten. Raises the error of the send, if any."""
        if self.handle is not None and self.handle.done():
            self.handle.wait()
            self.handle = None
            self.taken = False
        return not self.taken

    def fill(self, described: tuple[Described, ...], layout: Layout, tensors: Tensors) -> None:
        """Copy tensors into it, and write their header unless it is unchanged."""
        if self._described != described:
            with torch.inference_mode(False):
                self.frame = self._memory[: layout.nbytes]
                self._places = layout.views(self.frame)
            write_header(self.frame, layout.header)
            self._described = described
        self.taken = True
        with torch.no_grad():
            for place, tensor in zip(self._places, tensors, strict=True):
                if place is not None and tensor is not None:
                    place.copy_(tensor)


class Ring:
    """Slots that are reused after they have been read; as many as are in use at the same time."""

    def __init__(self) -> None:
        """Create a ring without slots."""
        self._slots: list[Slot] = []
        self._layouts: dict[tuple[Described, ...], Layout] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def take(self, tensors: Tensors, differentiable: Sequence[bool]) -> Slot:
        """Copy tensors into a free slot.

        The caller must set its handle to the send; it is free again when the send is done.
        """
        described = describe(tensors, differentiable)
        layout = self._layouts.get(described)
        if layout is None:
            layout = remember(self._layouts, described, Layout(described))
        slot = self._find(layout.nbytes)
        slot.fill(described, layout, tensors)
        return slot

    def _find(self, nbytes: int) -> Slot:
        for index, one in enumerate(self._slots):  # the one that was sent first comes first
            if one.nbytes == nbytes and one.free():
                self._slots.append(self._slots.pop(index))
                return one
        free = sorted((one for one in self._slots if one.free()), key=lambda one: one.nbytes)
        slot = next((one for one in free if one.nbytes >= nbytes), None)
        if slot is None:
            if free:  # all free slots are too small: replace the smallest one
                self._slots.remove(free.pop(0))
            slot = Slot(nbytes)
            self._slots.append(slot)
        return slot


class Remote:
    """A link to another rank."""

    def __init__(
        self, peer: int, tag: int, process_set: ProcessSet, near: bool, each_step: int
    ) -> None:
        """Link to the global rank `peer`, which creates the same link to this rank.

        `near`: whether it is on the same host. `each_step`: the number of transfers in each step.
        """
        self._where = (peer, tag, process_set)
        self._near = near
        self._ring = Ring()
        self._bare: deque[_core.Handle] = deque()  # sends without a slot
        self._sent, self._received = Sizes(each_step), Sizes(each_step)
        self._arriving: deque[_Arriving] = deque()  # receives started by prepare()
        self._known: dict[bytes, Layout] = {}  # layouts by header

    def send(self, tensors: Tensors, differentiable: Sequence[bool]) -> None:
        """Copy tensors to shared memory and start to send them."""
        slot = self._ring.take(tensors, differentiable)  # first, because it may raise MemoryError
        slot.handle = self._send(slot.frame)

    def skip(self) -> None:
        """Tell the receiver that there is nothing to compute."""
        self._bare.append(self._send(bare_frame(Kind.NOTHING)))

    def fail(self, reason: str) -> None:
        """Make the receiver raise PipelineError, whatever it waits for on this link."""
        self._bare.append(self._send(failed_frame(reason)))

    def _send(self, frame: torch.Tensor) -> _core.Handle:
        while self._bare and self._bare[0].done():
            self._bare.popleft().wait()
        nbytes, expected = frame.numel(), self._sent.expected
        if nbytes != expected:
            self._bare.append(self._start(True, bare_frame(Kind.RESIZED, nbytes, expected)))
        self._sent.note(nbytes)
        return self._start(True, frame)

    def _start(self, is_send: bool, frame: torch.Tensor) -> _core.Handle:
        message = prepared_message(is_send, torch.uint8, frame.numel(), data_type, *self._where)
        return message.start(frame.untyped_storage(), frame.data_ptr(), False)

    def prepare(self) -> None:
        """Start to receive the next frame, as far as its size is known."""
        if self._near:
            return  # the receiver reads it in the sender's memory
        if not self._arriving:
            self._arriving.append(self._ask(self._received.expected))
        elif len(self._arriving) == 1 and self._arriving[0].handle.done():
            kind, nbytes = read_header(header_of(self._arriving[0].wait()))
            if kind is Kind.RESIZED:
                self._arriving.append(self._ask(nbytes))

    def _ask(self, nbytes: int) -> _Arriving:
        frame = torch.empty(nbytes, dtype=torch.uint8)
        return _Arriving(frame, self._start(False, frame))

    def receive(self) -> Parcel | None:
        """Wait for the next frame, and return its tensors."""
        frame = self._next(self._received.expected)
        header = frame.header
        if header not in self._known:
            kind, nbytes = read_header(header)
            if kind is Kind.RESIZED:
                frame.release()
                frame = self._next(nbytes)
                header = frame.header
        self._received.note(frame.nbytes)
        layout = self._known.get(header)
        if layout is None:
            kind, _ = read_header(header)
            if kind is Kind.NOTHING:
                return None
            if kind is Kind.FAILED:
                raise PipelineError(reason_in(header))
            layout = remember(self._known, header, layout_in(header))
        return Parcel(frame.tensors(layout), layout.differentiable, frame.view)

    def _next(self, nbytes: int) -> _Seen | _Arrived:
        if self._near:
            return _Seen(receive_view(DataType.UINT8, nbytes, nbytes, *self._where))
        arriving = self._arriving.popleft() if self._arriving else self._ask(nbytes)
        return _Arrived(arriving.wait())


class _Seen:
    """A frame that is read in the sender's memory."""

    def __init__(self, view: MessageView) -> None:
        self.view = view
        self.nbytes = view.memory.nbytes
        self.header: bytes = view.memory.buffer[:HEADER_BYTES]

    def tensors(self, layout: Layout) -> list[torch.Tensor | None]:
        return layout.seen_in(self.view.memory.buffer)

    def release(self) -> None:
        self.view.release()


class _Arrived:
    """A frame in this rank's memory."""

    view = None

    def __init__(self, frame: torch.Tensor) -> None:
        self._frame = frame
        self.nbytes = frame.numel()
        self.header = header_of(frame)

    def tensors(self, layout: Layout) -> list[torch.Tensor | None]:
        return layout.views(self._frame)

    def release(self) -> None:
        pass


class _Arriving(NamedTuple):
    """A frame that is being received."""

    frame: torch.Tensor
    handle: _core.Handle

    def wait(self) -> torch.Tensor:
        """Return it when it has arrived."""
        self.handle.wait()
        return self.frame
