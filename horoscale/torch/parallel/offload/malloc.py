"""Makes malloc return freed memory to the system.

By default, glibc's malloc keeps freed blocks of up to 32 MiB for reuse. If parameters are allocated
and freed repeatedly, these are most of a process's memory, and offloading would save little.
"""

from __future__ import annotations

import ctypes
import os

_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of malloc.h
_LARGE = 1 << 20


def give_large_blocks_back() -> None:
    """Make malloc map blocks of 1 MiB or more individually, in this process from now on.

    Does nothing if the user has configured malloc (MALLOC_MMAP_THRESHOLD_, GLIBC_TUNABLES), or
    another malloc is in use.
    """
    if "MALLOC_MMAP_THRESHOLD_" in os.environ or "GLIBC_TUNABLES" in os.environ:
        return
    _call("mallopt", _MMAP_THRESHOLD, _LARGE)


def give_free_memory_back() -> None:
    """Make malloc return free whole pages to the system."""
    _call("malloc_trim", 0)


def _call(name: str, *arguments: int) -> None:
    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function(*arguments)
