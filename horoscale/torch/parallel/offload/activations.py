"""Activations that are kept on a disk, or in host memory, until their backward pass."""

from __future__ import annotations

import os
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import count

import torch
from torch import nn

from horoscale.torch.parallel.offload.direct import aligned
from horoscale.torch.parallel.offload.store import Store, Transfer
from horoscale.torch.tensors import in_memory_order

LEAST_BYTES = 64 << 10
_MOST_PENDING = 64 << 20  # maximum bytes waiting to be written, or one tensor
_AHEAD = 2  # tensors to read ahead of the backward pass


def offload_activations(
    to: str = "disk",
    folder: str | os.PathLike[str] | None = None,
    least_bytes: int = LEAST_BYTES,
) -> DiskOffload | HostOffload:
    """Offload the tensors that forward passes save for backward passes.

        offload = par.offload_activations("disk", "/scratch")
        for batch in batches:
            with offload():
                loss = model(batch)
            loss.backward()

    One object serves all passes and reuses its memory. It can also be passed to
    `par.Pipeline(activations=offload)`. Gradients are bitwise the same.

    Args:
        to: "disk": write CPU tensors to a file. "cpu": copy GPU tensors to host memory; CPU tensors
            are not moved.
        folder: the folder of the file. None: the system's folder for temporary files.
        least_bytes: smaller tensors stay where they are, and so do parameters.

    Raises:
        ValueError: `to` is something else.
        OffloadError: there is no such folder, or it can't be written to.
    """
    if to == "disk":
        return DiskOffload(folder, least_bytes)
    if to == "cpu":
        return HostOffload(least_bytes)
    raise ValueError(f'to={to!r}: activations go to "disk" or to "cpu"')


class DiskOffload:
    """Creates contexts in which tensors that autograd saves are written to a file.

        pipe = par.Pipeline(stages, mesh.pp, activations=par.DiskOffload("/scratch"), …)

    Only CPU tensors are offloaded, except parameters, which stay in memory anyway, and small
    tensors. Threads write while the forward pass continues, and read ahead of the backward pass.
    The file has no name and disappears with the process.
    """

    def __init__(
        self, folder: str | os.PathLike[str] | None = None, least_bytes: int = LEAST_BYTES
    ) -> None:
        """Open a file.

        Args:
            folder: the folder of the file, with room for the activations of all microbatches in
                flight. None: the system's folder for temporary files.
            least_bytes: smaller tensors stay in memory.

        Raises:
            OffloadError: there is no such folder, or it can't be written to.
        """
        self.store = Store(folder)
        weakref.finalize(self, self.store.close)
        self._least = least_bytes
        self._free: defaultdict[int, list[int]] = defaultdict(list)  # offsets by size
        self._saved: weakref.WeakValueDictionary[int, _Stored] = weakref.WeakValueDictionary()
        self._numbers = count()  # numbers of saved tensors; backward passes read in reverse order
        self._pending: deque[tuple[int, Transfer]] = deque()  # bytes that are being written
        self._lock = threading.RLock()  # each device has its own thread for backward passes
        # A separate lock, which is never held while waiting: the garbage collector may free tensors
        # in an I/O thread for which another thread waits while it holds _lock.
        self._places = threading.RLock()

    def __call__(self) -> AbstractContextManager[object]:
        """Return a context in which saved activations are offloaded."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    @property
    def file_bytes(self) -> int:
        """The size of the file."""
        return self.store.file.nbytes

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor | _Stored:
        values = tensor.detach()  # avoids a reference cycle between a result and its graph node
        if not tensor.is_cpu or not _worth_it(tensor, self._least):
            return values
        values = values.resolve_conj().resolve_neg()  # stored as it is in memory
        if not in_memory_order(values).is_contiguous():  # it has gaps
            values = values.contiguous()
        with self._lock:
            number = next(self._numbers)
            stored = self._saved[number] = _Stored(self, values, number)
            self._pending.append((stored.nbytes, stored.written))
            while sum(nbytes for nbytes, _ in self._pending) > _MOST_PENDING:
                self._pending.popleft()[1].wait()
            return stored

    def _unpack(self, saved: torch.Tensor | _Stored) -> torch.Tensor:
        if not isinstance(saved, _Stored):
            return saved
        with self._lock:
            while self._pending:
                self._pending.popleft()[1].wait()
            saved.start()
            for number in range(saved.number - 1, saved.number - 1 - _AHEAD, -1):
                before = self._saved.get(number)
                if before is not None:
                    before.start()
            return saved.read()

    def take(self, nbytes: int) -> int:
        """Return the offset of a free region."""
        with self._places:
            return (
                self._free[nbytes].pop() if self._free[nbytes] else self.store.file.reserve(nbytes)
            )

    def give_back(self, nbytes: int, offset: int) -> None:
        """Mark a region as free."""
        with self._places:
            self._free[nbytes].append(offset)


class HostOffload:
    """Creates contexts in which GPU tensors that autograd saves are copied to host memory.

    CPU tensors are not moved.
    """

    def __init__(self, least_bytes: int = LEAST_BYTES) -> None:
        """Offload only tensors of at least `least_bytes` bytes."""
        self._least = least_bytes

    def __call__(self) -> AbstractContextManager[object]:
        """Return a context in which saved activations are offloaded."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor | Callable[[], torch.Tensor]:
        values = tensor.detach()
        if tensor.is_cpu or not _worth_it(tensor, self._least):
            return values
        host: torch.Tensor = torch.empty_like(values, device="cpu", pin_memory=values.is_cuda)
        host.copy_(values, non_blocking=False)
        device = values.device
        return lambda: host.to(device, non_blocking=True)

    @staticmethod
    def _unpack(saved: torch.Tensor | Callable[[], torch.Tensor]) -> torch.Tensor:
        return saved if isinstance(saved, torch.Tensor) else saved()


class _Stored:
    """A tensor in the file, until it is released.

    Attributes:
        number: its position in the order of saved tensors.
        nbytes: its size in the file.
        written: the transfer that writes it.
    """

    def __init__(self, offload: DiskOffload, values: torch.Tensor, number: int) -> None:
        self.number = number
        self.nbytes = aligned(values.nbytes)
        self.written = Transfer()
        self._offload = offload
        self._dtype = values.dtype
        self._shape, self._strides = values.shape, values.stride()  # so kernels give the same bits
        self._coming: tuple[torch.Tensor, Transfer] | None = None
        self._offset = -1
        self._offset = offload.take(self.nbytes)
        self.written = offload.store.write_at(self._offset, values)

    def start(self) -> None:
        """Start to read it, unless that has started."""
        if self._coming is None:
            self.written.wait()
            values = torch.empty_strided(self._shape, self._strides, dtype=self._dtype)
            self._coming = values, self._offload.store.read_at(self._offset, values)

    def read(self) -> torch.Tensor:
        """Return the tensor."""
        self.start()
        assert self._coming is not None
        (values, transfer), self._coming = self._coming, None
        transfer.wait()
        return values

    def __del__(self) -> None:
        self.written.settle()  # the graph may be released before a backward pass
        if self._coming is not None:
            self._coming[1].settle()
        if self._offset >= 0:
            self._offload.give_back(self.nbytes, self._offset)


def _worth_it(tensor: torch.Tensor, least_bytes: int) -> bool:
    base = tensor if tensor._base is None else tensor._base  # such as a transposed weight
    return (
        tensor.layout is torch.strided
        and tensor.nbytes >= least_bytes
        and not isinstance(base, nn.Parameter)
    )
