"""Links: how tensors get from one stage to the next, or back.

Each hand-over is a frame: one message with all of its tensors. A sender copies them into a slot of
shared memory and goes on; a receiver on the same host reads them there. From another host they have
to travel: that begins before they are needed, where prepare() is called.

A message must be asked for with its size. Both ends expect that of the steps before; where it is
another one, a message of the size that was expected says so, and the frame follows.
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
    """What has come over a link: tensors in memory that may be the sender's, until release()."""

    def __init__(
        self,
        tensors: Tensors,
        differentiable: Sequence[bool] = (),
        view: MessageView | None = None,
    ) -> None:
        """`differentiable` tells which tensors the sender wants the gradients of."""
        self.tensors = tuple(tensors)
        self.differentiable = tuple(differentiable)
        self._view = view

    @property
    def borrowed(self) -> set[int]:
        """The addresses of the tensors whose memory release() gives back."""
        if self._view is None:
            return set()
        return {one.untyped_storage().data_ptr() for one in self.tensors if one is not None}

    def release(self) -> None:
        """Give the memory back: nothing reads the tensors any longer."""
        self.tensors = ()
        view, self._view = self._view, None
        if view is not None:
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


class Slot:
    """A piece of shared memory for a frame, and the send that reads it."""

    def __init__(self, nbytes: int) -> None:
        """Take memory; MemoryError if there is none."""
        try:
            with torch.inference_mode(False):  # an evaluation's slots are used by steps
                self._memory = empty_shared(nbytes, dtype=torch.uint8)
        except HorovodInternalError as error:  # of this rank alone: the others must be told
            raise MemoryError(f"what the next stage gets has no room: {error}") from error
        self._described: tuple[Described, ...] | None = None
        self._places: list[torch.Tensor | None] = []
        self.frame = self._memory  # as much of it as is sent
        self.taken = False
        self.handle: _core.Handle | None = None

    @property
    def nbytes(self) -> int:
        """Its size."""
        return self._memory.numel()

    def free(self) -> bool:
        """Return whether it may be written. Raises what went wrong with the send."""
        if self.handle is not None and self.handle.done():
            self.handle.wait()
            self.handle = None
            self.taken = False
        return not self.taken

    def fill(self, described: tuple[Described, ...], layout: Layout, tensors: Tensors) -> None:
        """Copy tensors into it, and their header where that is not the one before."""
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
    """Slots that are used again once they have been read, as many as are needed at once."""

    def __init__(self) -> None:
        """Begin without any."""
        self._slots: list[Slot] = []
        self._layouts: dict[tuple[Described, ...], Layout] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def take(self, tensors: Tensors, differentiable: Sequence[bool]) -> Slot:
        """Copy tensors into a free slot.

        It is free again once the send is done that its handle is set to.
        """
        described = describe(tensors, differentiable)
        layout = self._layouts.get(described)
        if layout is None:
            layout = remember(self._layouts, described, Layout(described))
        slot = self._find(layout.nbytes)
        slot.fill(described, layout, tensors)
        return slot

    def _find(self, nbytes: int) -> Slot:
        for index, one in enumerate(self._slots):  # the one first that was sent longest ago
            if one.nbytes == nbytes and one.free():
                self._slots.append(self._slots.pop(index))
                return one
        free = sorted((one for one in self._slots if one.free()), key=lambda one: one.nbytes)
        slot = next((one for one in free if one.nbytes >= nbytes), None)
        if slot is None:
            if free:  # too small, all of them: a larger one takes the place of the smallest
                self._slots.remove(free.pop(0))
            slot = Slot(nbytes)
            self._slots.append(slot)
        return slot


class Remote:
    """A link to another rank."""

    def __init__(
        self, peer: int, tag: int, process_set: ProcessSet, near: bool, each_step: int
    ) -> None:
        """Link to the global rank `peer`, which has made the same link to this one.

        `near`: it is on the same host. `each_step`: how often a step hands something over.
        """
        self._where = (peer, tag, process_set)
        self._near = near
        self._ring = Ring()
        self._bare: deque[_core.Handle] = deque()  # sends without a slot
        self._sent, self._received = Sizes(each_step), Sizes(each_step)
        self._arriving: deque[_Arriving] = deque()  # what prepare() has asked for
        self._known: dict[bytes, Layout] = {}  # by the header

    def send(self, tensors: Tensors, differentiable: Sequence[bool]) -> None:
        """Copy tensors to shared memory and start to send them."""
        slot = self._ring.take(tensors, differentiable)  # first: memory may run out
        slot.handle = self._send(slot.frame)

    def skip(self) -> None:
        """Send that there is nothing to compute."""
        self._bare.append(self._send(bare_frame(Kind.NOTHING)))

    def fail(self, reason: str) -> None:
        """Have the receiver raise PipelineError, whatever it waits for on this link."""
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
        """Start to receive what comes next, as far as is known what that is."""
        if self._near:
            return  # it is read where it is
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
        """Wait for the next frame, and find its tensors."""
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
    """A frame that is read where its sender has it."""

    def __init__(self, view: MessageView) -> None:
        self.view = view
        self.nbytes = view.memory.nbytes
        self.header: bytes = view.memory.buffer[:HEADER_BYTES]

    def tensors(self, layout: Layout) -> list[torch.Tensor | None]:
        return layout.seen_in(self.view.memory.buffer)

    def release(self) -> None:
        self.view.release()


class _Arrived:
    """A frame in memory of this rank."""

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
        """Return it once it is there."""
        self.handle.wait()
        return self.frame
