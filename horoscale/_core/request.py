"""Request: a description of an operation for the library, reused with different memory.

Describing an operation costs more than a small operation itself, and training repeats the same
ones.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any, Generic, NamedTuple, TypeVar

from horoscale._core._binding import ffi
from horoscale._core._in_flight import InFlight, Template
from horoscale._core.errors import c_string
from horoscale._core.types import DataType, Encoding, OpKind, ReduceOp

T = TypeVar("T")

# A limit, because requests with new names in each call are never reused.
_MAX_KNOWN = 4096

_WORD_BYTES = ffi.sizeof("uintptr_t")
_WORDS_PER_TENSOR = ffi.sizeof("hs_tensor") // _WORD_BYTES
_IN_WORD = ffi.offsetof("hs_tensor", "in") // _WORD_BYTES
_OUT_WORD = ffi.offsetof("hs_tensor", "out") // _WORD_BYTES
_ROWS_WORD = ffi.offsetof("hs_tensor", "out_rows") // _WORD_BYTES
_REQUEST_SIZE = ffi.sizeof("hs_request")


class Signature(NamedTuple):
    """An operation except its memory; see hs_request in the C header."""

    kind: OpKind
    tensors: tuple[tuple[DataType, tuple[int, ...]], ...] = ()  # element type, shape of the input
    name: str | None = None
    process_set: int = 0
    reduce_op: ReduceOp = ReduceOp.SUM
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = -1
    splits: tuple[int, ...] | None = None
    ranks: tuple[int, ...] | None = None
    target: int = -1
    priority: int = 0
    will_wait: bool = False
    encoding: Encoding = Encoding.NONE
    sealed: bool = False
    set_flags: int = 0


# Fields that the C structure has under the same name, as one number each.
_NUMBERS = tuple(
    field for field in Signature._fields if field not in {"tensors", "name", "splits", "ranks"}
)


class Device(NamedTuple):
    """The device of an operation's tensors, if they are not in host memory."""

    cuda_device: int
    stream: int  # address of the caller's current stream; 0: the legacy default stream


class Request:
    """A signature as a structure of the C ABI. Only one thread at a time may use it."""

    __slots__ = ("_device", "_keep_alive", "_words", "address", "pointer")

    def __init__(self, signature: Signature) -> None:
        """Describe the operation. place() sets its memory before each call."""
        count = len(signature.tensors)
        tensors = ffi.new("hs_tensor[]", count) if count else ffi.NULL
        shapes = [ffi.new("int64_t[]", shape) for _, shape in signature.tensors]
        for i, (dtype, shape) in enumerate(signature.tensors):
            tensors[i].dtype = dtype
            tensors[i].num_dims = len(shape)
            tensors[i].shape = shapes[i]
        # Addresses remain integers: casting each to a pointer would cost as much as a call.
        self._words = ffi.cast("uintptr_t *", tensors)
        self.pointer = request = ffi.new("hs_request *")
        self.address = int(ffi.cast("uintptr_t", request))
        request.struct_size = _REQUEST_SIZE
        for field in _NUMBERS:
            value = getattr(signature, field)
            if value is not None:
                setattr(request, field, value)
        request.name = name = c_string(signature.name, "name")
        request.tensors = tensors
        request.num_tensors = count
        splits = ranks = None
        if signature.splits is not None:
            request.splits = splits = ffi.new("int64_t[]", signature.splits)
            request.num_splits = len(signature.splits)
        if signature.ranks is not None:
            request.ranks = ranks = ffi.new("int32_t[]", signature.ranks)
            request.num_ranks = len(signature.ranks)
        self._keep_alive = tensors, shapes, name, splits, ranks
        self._device: Any = None

    def on_device(self, device: Device | None) -> None:
        """Set the device of the memory before each call. Initially it is the host."""
        if device is None:
            if self._device is not None:
                self._device = None
                self.pointer.device = ffi.NULL
            return
        if self._device is None:
            self._device = self.pointer.device = ffi.new("hs_device *")
        self._device.cuda_device = device.cuda_device
        self._device.stream = ffi.cast("void *", device.stream)

    def place(self, index: int, source: int, target: int, rows: int = 0) -> None:
        """Set the memory of tensor `index` and its result; 0: the library allocates it.

        `rows` is the number of rows that fit, if the input does not determine it.
        """
        first = _WORDS_PER_TENSOR * index
        self._words[first + _IN_WORD] = source
        self._words[first + _OUT_WORD] = target
        self._words[first + _ROWS_WORD] = rows


class Requests(threading.local):
    """The requests that a thread has created."""

    _known: dict[Signature, Request]

    def __init__(self) -> None:
        """Create it without requests."""
        self._known = {}

    def get(self, signature: Signature) -> Request:
        """Return the request for a signature."""
        request = self._known.get(signature)
        if request is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            request = self._known[signature] = Request(signature)
        return request


def prepare(in_flight: InFlight, signature: Signature, rows: int) -> Template:
    """Prepare an operation on one tensor in host memory; see hs_prepare().

    `rows` is as in place().
    """
    request = Request(signature)
    request.place(0, 0, 0, rows)
    return Template(in_flight, request.address)


class Prepared(Generic[T]):
    """A cache of prepared operations, with keys chosen by the bindings. Thread-safe.

    A hit in `recent` takes a single lookup. When `recent` is full, it becomes the second
    generation; entries that are not used until it is full again are dropped.
    """

    __slots__ = ("_earlier", "recent")

    recent: dict[Hashable, T]

    def __init__(self) -> None:
        """Create an empty cache."""
        self.recent = {}
        self._earlier: dict[Hashable, T] = {}

    def find(self, key: Hashable) -> T | None:
        """Look up a key that is not in `recent`, and move it there; None if it is unknown."""
        found = self._earlier.get(key)
        return None if found is None else self.keep(key, found)

    def clear(self) -> None:
        """Remove all entries."""
        self.recent = {}
        self._earlier = {}

    def get(self, key: Hashable) -> T | None:
        """Return the entry of a key, or None."""
        found = self.recent.get(key)
        return self.find(key) if found is None else found

    def keep(self, key: Hashable, prepared: T) -> T:
        """Store an entry under a key; return it."""
        if len(self.recent) >= _MAX_KNOWN // 2:
            self._earlier, self.recent = self.recent, {}
        self.recent[key] = prepared
        return prepared
