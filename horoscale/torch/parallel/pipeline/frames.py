"""Frames: tensors that are sent together, in one message.

A frame begins with a header of fixed size, which describes the dtypes and shapes of the tensors.
They follow it, each aligned like an allocated tensor, so that kernels behave the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch

from horoscale.torch.tensors import data_type, dtype_of

_WORDS = 64  # words of a header
HEADER_BYTES = 8 * _WORDS
_REASON_BYTES = HEADER_BYTES - 16
_ALIGNMENT = 64  # alignment of tensors, as PyTorch's
_LAYOUTS_KEPT = 64  # a limit, because sequences may have any lengths
_ABSENT = -1  # in place of a dtype

K = TypeVar("K")
# A stage's outputs, or their gradients; None for a tensor without gradient.
Tensors: TypeAlias = Sequence["torch.Tensor | None"]


class Kind(IntEnum):
    """The content of a frame."""

    TENSORS = 0
    NOTHING = 1  # there is nothing to compute
    FAILED = 2  # the reason why this rank can't continue
    RESIZED = 3  # the size of the next frame, which differs from the expected one


class Described(NamedTuple):
    """The description of a tensor in a frame."""

    dtype: torch.dtype | None  # None: no tensor
    differentiable: bool
    shape: tuple[int, ...]


_NO_TENSOR = Described(None, False, ())


class Layout:
    """The positions of tensors in a frame."""

    def __init__(self, tensors: tuple[Described, ...]) -> None:
        """Lay tensors out; raise ValueError if there are too many for a header."""
        self.tensors = tensors
        words = [int(Kind.TENSORS), len(tensors)]
        self._offsets: list[int] = []
        end = HEADER_BYTES
        for dtype, differentiable, shape in tensors:
            self._offsets.append(end)
            if dtype is None:
                words.append(_ABSENT)
                continue
            words += [int(data_type(dtype)), differentiable, len(shape), *shape]
            end += -(-torch.Size(shape).numel() * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        if len(words) > _WORDS:
            raise ValueError(
                f"a stage hands over {len(tensors)} tensors, more than a header has room for: "
                "join some"
            )
        self.nbytes = end
        self.header = words

    @property
    def differentiable(self) -> list[bool]:
        """For each tensor, whether the sender needs its gradient."""
        return [one.differentiable for one in self.tensors]

    def views(self, frame: torch.Tensor) -> list[torch.Tensor | None]:
        """Return the tensors in a frame's memory.

        Autograd treats them as separate tensors: modifying one in place does not affect the others.
        """
        storage = frame.untyped_storage()
        views: list[torch.Tensor | None] = []
        for (dtype, _, shape), offset in zip(self.tensors, self._offsets, strict=True):
            if dtype is None:
                views.append(None)
                continue
            tensor = torch.empty(0, dtype=dtype)
            views.append(tensor.set_(storage, offset // dtype.itemsize, shape))  # type: ignore[call-overload]
        return views

    def seen_in(self, memory: Any) -> list[torch.Tensor | None]:
        """Return the tensors of a frame in a buffer's memory, as views() does."""
        views: list[torch.Tensor | None] = []
        for (dtype, _, shape), offset in zip(self.tensors, self._offsets, strict=True):
            if dtype is None:
                views.append(None)
                continue
            elements = torch.Size(shape).numel()
            if not elements:
                views.append(torch.empty(shape, dtype=dtype))
                continue
            flat = torch.frombuffer(memory, dtype=dtype, count=elements, offset=offset)
            views.append(flat.view(shape))
        return views


def describe(tensors: Tensors, differentiable: Sequence[bool]) -> tuple[Described, ...]:
    """Describe tensors, for a Layout."""
    return tuple(
        Described(None, False, ())
        if one is None
        else Described(one.dtype, wanted, tuple(one.shape))
        for one, wanted in zip(tensors, differentiable, strict=True)
    )


def write_header(frame: torch.Tensor, words: Sequence[int]) -> None:
    """Write a header to the beginning of a frame."""
    frame[:HEADER_BYTES].view(torch.int64).copy_(
        torch.tensor([*words, *[0] * (_WORDS - len(words))])
    )


def bare_frame(kind: Kind, number: int = 0, nbytes: int = HEADER_BYTES) -> torch.Tensor:
    """Return a frame of `nbytes` bytes without tensors."""
    frame = torch.empty(nbytes, dtype=torch.uint8)
    write_header(frame, [kind, number])
    return frame


def failed_frame(reason: str) -> torch.Tensor:
    """Return a frame with the reason of a failure, truncated to fit."""
    text = reason.encode()[:_REASON_BYTES].decode(errors="ignore").encode()
    padded = text.ljust(_REASON_BYTES, b"\0")
    words = torch.frombuffer(bytearray(padded), dtype=torch.int64).tolist()
    frame = torch.empty(HEADER_BYTES, dtype=torch.uint8)
    write_header(frame, [Kind.FAILED, len(text), *words])
    return frame


def header_of(frame: torch.Tensor) -> bytes:
    """Return the header of a frame."""
    return frame[:HEADER_BYTES].numpy().tobytes()


def read_header(header: bytes) -> tuple[Kind, int]:
    """Return the kind of a frame, and its number of tensors or bytes."""
    kind, number = _words(header)[:2]
    return Kind(kind), number


def reason_in(header: bytes) -> str:
    """Return the reason that was passed to failed_frame()."""
    _, nbytes = read_header(header)
    return header[16 : 16 + nbytes].decode(errors="replace")


def layout_in(header: bytes) -> Layout:
    """Return the layout of a frame of tensors."""
    _, number, *words = _words(header)
    described = []
    at = 0
    for _ in range(number):
        if words[at] == _ABSENT:
            described.append(_NO_TENSOR)
            at += 1
            continue
        dtype, wanted, dimensions = words[at : at + 3]
        shape = tuple(words[at + 3 : at + 3 + dimensions])
        described.append(Described(dtype_of(dtype), bool(wanted), shape))
        at += 3 + dimensions
    return Layout(tuple(described))


def remember(layouts: dict[K, Layout], key: K, layout: Layout) -> Layout:
    """Cache a layout for the next frame with the same key; return it."""
    if len(layouts) >= _LAYOUTS_KEPT:
        layouts.clear()
    layouts[key] = layout
    return layout


def _words(header: bytes) -> list[int]:
    words: list[int] = torch.frombuffer(bytearray(header), dtype=torch.int64).tolist()
    return words


class Sizes:
    """The expected sizes of a link's frames. Both ends track them alike.

    Each frame of a step is expected to have the size that it had in the two preceding steps, since
    a batch's last microbatch is often smaller. If these sizes differ, only a header is expected.
    """

    def __init__(self, each_step: int) -> None:
        """Create it for a link with `each_step` frames in each step."""
        self._last = [HEADER_BYTES] * each_step
        self._before = [HEADER_BYTES] * each_step
        self._at = 0

    @property
    def expected(self) -> int:
        """The bytes of the next message."""
        last = self._last[self._at]
        return last if last == self._before[self._at] else HEADER_BYTES

    def note(self, nbytes: int) -> None:
        """Record the size of the current frame."""
        at = self._at
        self._before[at], self._last[at] = self._last[at], nbytes
        self._at = (at + 1) % len(self._last)
