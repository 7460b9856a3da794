"""Store: flat tensors in a file, read and written by threads in the background."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np
import torch

from horoscale.torch.parallel.offload.direct import (
    DirectFile,
    aligned,
    aligned_memory,
    bytes_of,
)

THREADS = 4
CHUNK_BYTES = 2 << 20  # size of a thread's read or write


class Transfer:
    """Reads and writes in progress."""

    def __init__(self, parts: Iterable[Future[None]] = ()) -> None:
        """Track these parts."""
        self._parts = list(parts)

    def add(self, other: Transfer) -> None:
        """Track another transfer's parts, too."""
        self._parts += other._parts

    def then(self, work: Callable[[], None]) -> Transfer:
        """Run a function that does not block after the last part; track it, too.

        The thread that finishes last runs it; this thread does if nothing is in progress.
        """
        parts, rest = self._parts, len(self._parts)
        lock = threading.Lock()
        end: Future[None] = Future()

        def done(_: Future[None]) -> None:
            nonlocal rest
            with lock:
                rest -= 1
                if rest:
                    return
            finish()

        def finish() -> None:
            try:
                for part in parts:
                    part.result()
                work()
            except BaseException as error:
                end.set_exception(error)
            else:
                end.set_result(None)

        for part in parts:
            part.add_done_callback(done)
        if not parts:
            finish()
        return Transfer([end])

    def wait(self) -> None:
        """Wait until everything is transferred.

        Raises:
            OffloadError: a part failed.
        """
        parts, self._parts = self._parts, []
        failure = None
        for part in parts:  # wait for all, because their memory is free afterwards
            failure = part.exception() or failure
        if failure is not None:
            raise failure

    def settle(self) -> None:
        """Wait until nothing is in progress, ignoring errors."""
        wait(self._parts)


class Area:
    """A flat tensor in the file.

    Attributes:
        offset: its offset in the file.
        tensor: a view of the file, for uses where speed does not matter, such as checkpoints. It is
            read through the page cache, which the system can reclaim. It shows data written by
            Store.write() once the transfer is done.
    """

    def __init__(self, file: DirectFile, offset: int, length: int, dtype: torch.dtype) -> None:
        """Map `length` elements."""
        self.offset = offset
        self._map = file.map(offset, max(length, 1) * dtype.itemsize)
        self.tensor = torch.frombuffer(self._map, dtype=dtype)[:length]

    def drop(self) -> None:
        """Drop the mapped pages from this process's memory."""
        self._map.madvise(mmap.MADV_DONTNEED)


class Store:
    """The offloaded tensors of a rank.

    Attributes:
        file: the file with the tensors.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, nbytes: int = 0) -> None:
        """Create the file and reserve `nbytes` bytes.

        Raises:
            OffloadError: the folder is missing, can't be written to, or is on a disk that is full.
        """
        self.file = DirectFile(folder)
        self._areas: list[Area] = []
        self._reserved = 0  # bytes at the end of the file that belong to no area
        self._threads = ThreadPoolExecutor(THREADS, "horoscale-offload")
        self._own = threading.local()  # buffer of each thread
        self._free: list[torch.Tensor] = []
        self.reserve(nbytes)

    def reserve(self, nbytes: int) -> None:
        """Reserve a total of `nbytes` bytes for future areas.

        Raises:
            OffloadError: the disk is full.
        """
        if nbytes > self._reserved:
            self.file.reserve(nbytes - self._reserved)
            self._reserved = nbytes

    def area(self, length: int, dtype: torch.dtype) -> Area:
        """Return a new tensor, filled with zeros.

        Raises:
            OffloadError: the disk is full.
        """
        nbytes = aligned(max(length, 1) * dtype.itemsize)
        self.reserve(nbytes)
        made = Area(self.file, self.file.nbytes - self._reserved, length, dtype)
        self._reserved -= nbytes
        self._areas.append(made)
        return made

    def drop(self) -> None:
        """Drop the mapped pages of all areas from this process's memory."""
        for one in self._areas:
            one.drop()

    def write(self, area: Area, begin: int, values: torch.Tensor) -> Transfer:
        """Start to write values to an area, from an aligned element on.

        Do not modify the values until the transfer is done. Threads copy unaligned memory. Only a
        write at the area's end may have an unaligned length, because padding follows it.
        """
        return self.write_at(area.offset + begin * values.dtype.itemsize, values)

    def read(self, area: Area, begin: int, values: torch.Tensor) -> Transfer:
        """Start to read from an area into `values`, from an aligned element on."""
        return self.read_at(area.offset + begin * values.dtype.itemsize, values)

    def write_at(self, offset: int, values: torch.Tensor) -> Transfer:
        """Start to write a dense tensor at an aligned offset in the file."""
        return self._each(offset, values, self._write)

    def read_at(self, offset: int, values: torch.Tensor) -> Transfer:
        """Start to read into a dense tensor from an aligned offset in the file."""
        return self._each(offset, values, self._read)

    def take(self) -> torch.Tensor:
        """Return a buffer of CHUNK_BYTES bytes that can be transferred without a copy."""
        return self._free.pop() if self._free else aligned_memory(CHUNK_BYTES)

    def give_back(self, memory: torch.Tensor) -> None:
        """Return a buffer from take() for reuse."""
        self._free.append(memory)

    def close(self) -> None:
        """Release the disk space when no tensor refers to it."""
        self._threads.shutdown()
        self._free.clear()
        self._areas.clear()
        self.file.close()

    def _each(
        self, offset: int, values: torch.Tensor, move: Callable[[memoryview, int], None]
    ) -> Transfer:
        def part(first: int) -> None:
            move(bytes_of(values)[first : first + CHUNK_BYTES], offset + first)

        return Transfer(
            self._threads.submit(part, first) for first in range(0, values.nbytes, CHUNK_BYTES)
        )

    def _write(self, values: memoryview, offset: int) -> None:
        if _is_aligned(values):
            self.file.write(values, offset)
            return
        own = self._bounce(len(values))
        np.copyto(np.asarray(own)[: len(values)], np.asarray(values))
        self.file.write(own, offset)

    def _read(self, values: memoryview, offset: int) -> None:
        if _is_aligned(values):
            self.file.read(values, offset)
            return
        own = self._bounce(len(values))
        self.file.read(own, offset)
        np.copyto(np.asarray(values), np.asarray(own)[: len(values)])

    def _bounce(self, nbytes: int) -> memoryview:
        """Return this thread's buffer, of `nbytes` bytes rounded up to the alignment."""
        if not hasattr(self._own, "memory"):
            self._own.memory = aligned_memory(CHUNK_BYTES)
        return bytes_of(self._own.memory)[: aligned(nbytes)]


def _is_aligned(values: memoryview) -> bool:
    address = np.frombuffer(values, np.uint8).ctypes.data
    return aligned(address) == address and aligned(len(values)) == len(values)
