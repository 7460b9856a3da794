"""DiskOffload: activations wait for their backward pass in a file."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections import defaultdict
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch import nn

from horoscale.torch.tensors import in_memory_order


class DiskOffload:
    """Makes contexts in which what autograd saves goes to a file, and comes back when needed.

        pipe = par.Pipeline(stages, mesh.pp, activations=par.DiskOffload("/scratch"), …)

    For CPU tensors; the file has no name and goes with the process. Weights, which stay in memory
    anyway, and small tensors are not written. (To move what is saved on a GPU to the host use
    torch.autograd.graph.save_on_cpu.)
    """

    def __init__(self, folder: str | Path | None = None, least_bytes: int = 64 << 10) -> None:
        """Open a file.

        Args:
            folder: where; it takes the activations of all microbatches that are in flight. None:
                the system's folder for temporary files.
            least_bytes: smaller tensors stay in memory.
        """
        self._file, path = tempfile.mkstemp(dir=folder)
        os.unlink(path)
        weakref.finalize(self, os.close, self._file)
        self._least = least_bytes
        self._end = 0
        self._free: defaultdict[int, list[int]] = defaultdict(list)  # offsets, by their size

    def __call__(self) -> AbstractContextManager[object]:
        """Return a context to save activations in."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    @property
    def file_bytes(self) -> int:
        """How large the file has become."""
        return self._end

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor | _Stored:
        values = tensor.detach()  # a result would keep the node that saves it, and that keeps this
        if not self._worth_it(tensor):
            return values
        if not in_memory_order(values).is_contiguous():  # it has gaps
            values = values.contiguous()
        return _Stored(self, values)

    @staticmethod
    def _unpack(saved: torch.Tensor | _Stored) -> torch.Tensor:
        return saved.read() if isinstance(saved, _Stored) else saved

    def _worth_it(self, tensor: torch.Tensor) -> bool:
        base = tensor if tensor._base is None else tensor._base  # of a transposed weight
        return (
            tensor.is_cpu
            and tensor.layout is torch.strided
            and tensor.nbytes >= self._least
            and not isinstance(base, nn.Parameter)
        )

    def take(self, nbytes: int) -> int:
        """Return the offset of a free place."""
        if self._free[nbytes]:
            return self._free[nbytes].pop()
        self._end += nbytes
        return self._end - nbytes

    def give_back(self, nbytes: int, offset: int) -> None:
        """Let a place be taken again."""
        self._free[nbytes].append(offset)

    def write(self, values: memoryview, offset: int) -> None:
        """Write all bytes; OSError if the disk is full."""
        while values:
            written = os.pwrite(self._file, values, offset)
            values, offset = values[written:], offset + written

    def read(self, values: memoryview, offset: int) -> None:
        """Read so many bytes back."""
        while values:
            number = os.preadv(self._file, [values], offset)
            if number == 0:
                raise OSError("the file of offloaded activations has become shorter")
            values, offset = values[number:], offset + number


class _Stored:
    """A tensor in the file, until it is forgotten."""

    def __init__(self, offload: DiskOffload, values: torch.Tensor) -> None:
        self._offload = offload
        self._dtype = values.dtype
        self._shape, self._strides = values.shape, values.stride()  # the same kernels, same bits
        self._nbytes = values.nbytes
        self._offset = offload.take(self._nbytes)
        offload.write(_bytes_of(values), self._offset)

    def read(self) -> torch.Tensor:
        values = torch.empty_strided(self._shape, self._strides, dtype=self._dtype)
        self._offload.read(_bytes_of(values), self._offset)
        return values

    def __del__(self) -> None:
        self._offload.give_back(self._nbytes, self._offset)


def _bytes_of(values: torch.Tensor) -> memoryview:
    """Return the memory of a dense tensor, in its own order."""
    flat = values.as_strided((values.numel(),), (1,))
    return flat.view(torch.uint8).numpy().data
