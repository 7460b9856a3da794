"""Memory allocated by the library, owned by Python objects and freed with the last reference."""

from __future__ import annotations

from functools import partial

from horoscale._core._binding import ffi, lib
from horoscale._core.errors import check

_UINTPTR = ffi.typeof("uintptr_t")


class OwnedBuffer:
    """Memory of the library with a Python owner.

    Any object created from `buffer` (arrays, tensors, memoryviews) keeps the memory alive.
    """

    __slots__ = ("buffer", "nbytes", "pointer")

    def __init__(self, owner: object, nbytes: int) -> None:
        """Wrap `owner`, a cffi pointer that frees its memory when it is collected."""
        self.nbytes = nbytes
        self.pointer = int(ffi.cast("uintptr_t", owner))
        self.buffer = ffi.buffer(owner, nbytes)  # keeps the owner alive; writable

    @classmethod
    def of_output(cls, pointer: object, nbytes: int) -> OwnedBuffer:
        """Adopt memory from hs_output()."""
        return cls(ffi.gc(ffi.cast("char *", pointer), lib.hs_free), nbytes)

    @classmethod
    def of_shared(cls, runtime: object, pointer: object, nbytes: int) -> OwnedBuffer:
        """Adopt memory from hs_shared_alloc(). It keeps the runtime from being freed."""
        free = partial(lib.hs_shared_free, runtime)
        return cls(ffi.gc(ffi.cast("char *", pointer), free), nbytes)


class JoinedBuffer(OwnedBuffer):
    """Shared memory of several ranks, mapped side by side."""

    __slots__ = ()

    def __init__(self, pointer: object, nbytes: int) -> None:
        """Adopt memory from hs_shared_join()."""
        unmap = partial(_unjoin, nbytes)
        super().__init__(ffi.gc(ffi.cast("char *", pointer), unmap), nbytes)

    def leave(self) -> None:
        """Replace the ranks' memory by zeros."""
        check(lib.hs_shared_leave(ffi.cast("void *", self.pointer), self.nbytes))


def _unjoin(nbytes: int, pointer: object) -> None:
    lib.hs_shared_unjoin(pointer, nbytes)


class DeviceBuffer:
    """Memory of a CUDA device that the library allocated.

    When the last reference is dropped, it is freed after the work queued on the operation's stream.
    Libraries that support __cuda_array_interface__ (torch, CuPy) see it as bytes, and keep it
    alive.
    """

    __slots__ = ("_owner", "nbytes", "pointer")

    def __init__(self, pointer: object, nbytes: int) -> None:
        """Adopt memory from hs_output()."""
        self._owner = ffi.gc(pointer, lib.hs_device_free)
        self.nbytes = nbytes
        self.pointer = int(ffi.cast("uintptr_t", self._owner))

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """The description for version 3 of the interface."""
        return {
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (self.pointer, False),
            "version": 3,
        }


def address_of(buffer: object) -> int:
    """Return the address of an object with the buffer protocol, which must outlive its use."""
    return int(ffi.cast(_UINTPTR, ffi.from_buffer(buffer)))
