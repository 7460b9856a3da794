"""Store: flat tensors in a file, moved by threads while others compute."""

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
CHUNK_BYTES = 2 << 20  # that a thread moves at once


class Transfer:
    """What threads are moving."""

    def __init__(self, parts: Iterable[Future[None]] = ()) -> None:
        """Follow these parts."""
        self._parts = list(parts)

    def add(self, other: Transfer) -> None:
        """Follow what another one does, too."""
        self._parts += other._parts

    def then(self, work: Callable[[], None]) -> Transfer:
        """Have the thread that is done last do something that does not wait; follow that.

        Where nothing is moved this thread does it.
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
        """Return when all is moved.

        Raises:
            OffloadError: something could not be.
        """
        parts, self._parts = self._parts, []
        failure = None
        for part in parts:  # all of them: what they use is free afterwards
            failure = part.exception() or failure
        if failure is not None:
            raise failure

    def settle(self) -> None:
        """Return when nothing is moved any longer, whether it succeeded or not."""
        wait(self._parts)


class Area:
    """A flat tensor in the file.

    Attributes:
        offset: where it begins in the file.
        tensor: the values, as a view of the file: for all that is not in a hurry, such as
            checkpoints. It is read through the page cache, which the system can take back. What
            Store.write() has written is there when its transfer is done.
    """

    def __init__(self, file: DirectFile, offset: int, length: int, dtype: torch.dtype) -> None:
        """Map `length` elements."""
        self.offset = offset
        self._map = file.map(offset, max(length, 1) * dtype.itemsize)
        self.tensor = torch.frombuffer(self._map, dtype=dtype)[:length]

    def drop(self) -> None:
        """Let this process forget what it has seen of the values."""
        self._map.madvise(mmap.MADV_DONTNEED)


class Store:
    """The offloaded tensors of a rank.

    Attributes:
        file: where they are.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, nbytes: int = 0) -> None:
        """Make the file, with room for so many bytes.

        Raises:
            OffloadError: the folder is missing, can't be written to, or is on a disk that is full.
        """
        self.file = DirectFile(folder)
        self._areas: list[Area] = []
        self._reserved = 0  # bytes at the end of the file that no area has
        self._threads = ThreadPoolExecutor(THREADS, "horoscale-offload")
        self._own = threading.local()  # memory of each thread
        self._free: list[torch.Tensor] = []
        self.reserve(nbytes)

    def reserve(self, nbytes: int) -> None:
        """Have room for areas that will be made, of so many bytes together.

        Raises:
            OffloadError: the disk is full.
        """
        if nbytes > self._reserved:
            self.file.reserve(nbytes - self._reserved)
            self._reserved = nbytes

    def area(self, length: int, dtype: torch.dtype) -> Area:
        """Return a new tensor of zeros.

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
        """Let this process forget what it has seen of all areas."""
        for one in self._areas:
            one.drop()

    def write(self, area: Area, begin: int, values: torch.Tensor) -> Transfer:
        """Begin to write values to an area, from an element on that is aligned.

        They stay as they are until the transfer is done. Of memory that is not aligned the threads
        make copies. Unaligned lengths end at the area's end: what comes after is room.
        """
        return self.write_at(area.offset + begin * values.dtype.itemsize, values)

    def read(self, area: Area, begin: int, values: torch.Tensor) -> Transfer:
        """Begin to fill values with those of an area, from an element on that is aligned."""
        return self.read_at(area.offset + begin * values.dtype.itemsize, values)

    def write_at(self, offset: int, values: torch.Tensor) -> Transfer:
        """Begin to write a dense tensor to a place in the file that is aligned."""
        return self._each(offset, values, self._write)

    def read_at(self, offset: int, values: torch.Tensor) -> Transfer:
        """Begin to fill a dense tensor with what is at a place in the file that is aligned."""
        return self._each(offset, values, self._read)

    def take(self) -> torch.Tensor:
        """Return memory of CHUNK_BYTES bytes that can be moved without a copy."""
        return self._free.pop() if self._free else aligned_memory(CHUNK_BYTES)

    def give_back(self, memory: torch.Tensor) -> None:
        """Let memory that take() has returned be taken again."""
        self._free.append(memory)

    def close(self) -> None:
        """Give the disk's room back when no tensor of it is left."""
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
        """Return this thread's memory, as long as so many bytes are when aligned."""
        if not hasattr(self._own, "memory"):
            self._own.memory = aligned_memory(CHUNK_BYTES)
        return bytes_of(self._own.memory)[: aligned(nbytes)]


def _is_aligned(values: memoryview) -> bool:
    address = np.frombuffer(values, np.uint8).ctypes.data
    return aligned(address) == address and aligned(len(values)) == len(values)
