"""DirectFile: a file without a name, read and written with direct I/O."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import tempfile
import weakref
from pathlib import Path

import torch

ALIGNMENT = 4096  # of offsets, lengths and memory, as file systems require for direct I/O


class OffloadError(RuntimeError):
    """The folder for offloaded state or activations is full, missing or broken."""


class DirectFile:
    """A private file that disappears with the process, however it ends.

    Reads and writes release the GIL, and any number of threads may call them. They bypass the page
    cache (O_DIRECT) if the file system supports it.

    Attributes:
        folder: its folder.
        is_direct: whether it bypasses the page cache.
        nbytes: its size, which is reserved on the disk.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        """Create the file. Only the user may read it, and its name is removed at once.

        Args:
            folder: its folder. None: the system's folder for temporary files.

        Raises:
            OffloadError: there is no such folder, or it can't be written to.
        """
        self.folder = Path(tempfile.gettempdir() if folder is None else folder).absolute()
        self.nbytes = 0
        try:
            self._file, path = tempfile.mkstemp(prefix="horoscale-offload-", dir=self.folder)
            os.unlink(path)
        except OSError as error:
            raise OffloadError(f"can't offload to {self.folder}: {error.strerror}") from error
        self._close = weakref.finalize(self, os.close, self._file)
        self.is_direct = self._set_direct(True)

    def reserve(self, nbytes: int) -> int:
        """Extend the file by `nbytes` and reserve the disk space; return the old end.

        Raises:
            OffloadError: the disk is full.
        """
        begin, length = self.nbytes, aligned(nbytes)
        while length:
            was_direct = self.is_direct
            try:
                os.posix_fallocate(self._file, begin, length)
                break
            except OSError as error:
                if error.errno != errno.EINVAL or not was_direct:
                    raise self._failed("reserve", length, error) from error
                # This file system cannot reserve space; libc instead writes a byte of each block.
                self.is_direct = self._set_direct(False)
        self.nbytes += length
        return begin

    def map(self, offset: int, nbytes: int) -> mmap.mmap:
        """Map a part of the file into memory."""
        return mmap.mmap(self._file, aligned(nbytes), offset=offset)

    def write(self, values: memoryview, offset: int) -> None:
        """Write all bytes. Unaligned writes go through the page cache.

        Raises:
            OffloadError: the disk is full or broken.
        """
        self._move(os.pwritev, "write", values, offset)

    def read(self, values: memoryview, offset: int) -> None:
        """Read from the file into memory.

        Raises:
            OffloadError: the disk is broken.
        """
        self._move(os.preadv, "read", values, offset)

    def close(self) -> None:
        """Release the disk space."""
        self._close()

    def _move(self, move: object, what: str, values: memoryview, offset: int) -> None:
        assert callable(move)
        while values:
            was_direct = self.is_direct  # another thread may change it in the meantime
            try:
                number = move(self._file, [values], offset)
            except OSError as error:
                if error.errno == errno.EINVAL and was_direct:
                    self.is_direct = self._set_direct(False)  # this disk needs another alignment
                    continue
                raise self._failed(what, len(values), error) from error
            if number == 0:
                raise OffloadError(f"the file of what was offloaded to {self.folder} ends early")
            values, offset = values[number:], offset + number

    def _set_direct(self, wanted: bool) -> bool:
        """Enable or disable direct I/O; return whether it is enabled now."""
        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        try:
            fcntl.fcntl(
                self._file, fcntl.F_SETFL, flags | os.O_DIRECT if wanted else flags & ~os.O_DIRECT
            )
        except OSError:  # tmpfs of older kernels
            return False
        return wanted

    def _failed(self, what: str, nbytes: int, error: OSError) -> OffloadError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            free = os.statvfs(self.folder)
            return OffloadError(
                f"{self.folder} is full: there is no room to offload {nbytes / 2**20:.1f} MiB more "
                f"than the {self.nbytes / 2**20:.1f} MiB that are there "
                f"({free.f_bavail * free.f_frsize / 2**20:.1f} MiB are free)"
            )
        return OffloadError(f"can't {what} {nbytes} bytes in {self.folder}: {error.strerror}")


def aligned(nbytes: int) -> int:
    """Return a number of bytes rounded up to the alignment for direct I/O."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def aligned_memory(nbytes: int) -> torch.Tensor:
    """Return memory of at least `nbytes` bytes, aligned for direct I/O."""
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, max(aligned(nbytes), ALIGNMENT), flags=private)
    return torch.frombuffer(memory, dtype=torch.uint8)


def bytes_of(values: torch.Tensor) -> memoryview:
    """Return the memory of a dense CPU tensor, in its own order.

    The tensor must outlive it. (numpy's view would prevent resizing the tensor's storage.)
    """
    memory = (ctypes.c_char * values.nbytes).from_address(values.data_ptr())
    return memoryview(memory).cast("B")
