"""Memory that goes back to the system as soon as it is freed.

By default glibc's malloc keeps freed blocks of up to 32 MiB for later ones. Where parameters come
and go these are most of a process' memory, and offloading would save little.
"""

from __future__ import annotations

import ctypes
import os

_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of malloc.h
_LARGE = 1 << 20


def give_large_blocks_back() -> None:
    """Have malloc map blocks of 1 MiB or more one by one, in this process from now on.

    Does nothing where the user has said how (MALLOC_MMAP_THRESHOLD_, GLIBC_TUNABLES), or another
    malloc is in use.
    """
    if "MALLOC_MMAP_THRESHOLD_" in os.environ or "GLIBC_TUNABLES" in os.environ:
        return
    _call("mallopt", _MMAP_THRESHOLD, _LARGE)


def give_free_memory_back() -> None:
    """Have malloc give back what is free now, as far as it is whole pages."""
    _call("malloc_trim", 0)


def _call(name: str, *arguments: int) -> None:
    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function(*arguments)
