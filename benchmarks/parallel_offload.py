"""Measures training state on a disk: how close steps come to the speed of the disk.

    python benchmarks/parallel_offload.py [--folder /scratch] [--mib 1024] [--rounds 5]

One process runs AdamW steps over parameters that par.shard(offload="disk") keeps on a disk, with 16
bytes of state each. A step reads values, gradients and both moments, and writes all but the
gradients. It is compared, alternately, with a bare program that moves as many bytes on the same
disk: four threads read and write equally large pieces of a file with direct I/O, in the same
proportion, and compute nothing. "gather" reads all parameters, as forward and backward passes in
stage 3 do, and is compared with a bare program that reads as much.
"""

from __future__ import annotations

import argparse
import mmap
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import figures
import torch
from folders import temporary_folder
from torch import nn

import horoscale.torch.parallel as par
from horoscale.torch.parallel.zero import sharded_of

PIECE = 4 << 20
THREADS = 4
MIB = 1 << 20
ALIKE = ("gather", "step")


class Bare:
    """A program that only reads and writes, as fast as the disk allows."""

    name = "bare disk"

    def __init__(self, folder: Path, state_bytes: int) -> None:
        self._pieces = state_bytes // 4 // PIECE  # of each of four tensors
        descriptor, path = tempfile.mkstemp(dir=folder)
        os.close(descriptor)
        self._file = os.open(path, os.O_RDWR | os.O_DIRECT)
        os.unlink(path)
        os.posix_fallocate(self._file, 0, 4 * self._pieces * PIECE)
        self._memory = [mmap.mmap(-1, PIECE) for _ in range(THREADS)]
        for memory in self._memory:
            memory.write(os.urandom(PIECE))
        self._run([(os.pwritev, number) for number in range(4 * self._pieces)])

    def measure(self, what: str) -> float:
        """Return the seconds of a step, or of reading all parameters."""
        work: list[tuple[Any, int]] = []
        for piece in range(self._pieces):
            tensors = [tensor * self._pieces + piece for tensor in range(4)]
            if what == "gather":
                tensors = tensors[:1]
            work += [(os.preadv, number) for number in tensors]
            if what == "step":
                work += [(os.pwritev, number) for number in tensors[:3]]
        begin = time.perf_counter()
        self._run(work)
        return time.perf_counter() - begin

    def _run(self, work: Sequence[tuple[Any, int]]) -> None:
        rest = iter(work)  # the pieces that the threads take

        def move(memory: mmap.mmap) -> None:
            for call, number in rest:
                if call(self._file, [memory], number * PIECE) != PIECE:
                    raise OSError("a piece was not moved in one go")

        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(move, self._memory))


class Ours:
    """An optimizer of parameters on the disk."""

    name = "offload"

    def __init__(self, folder: Path, state_bytes: int) -> None:
        width = 2048
        layers = state_bytes // 16 // (width * width)
        with torch.device("meta"):
            self.model = nn.Sequential(
                *(nn.Linear(width, width, bias=False) for _ in range(layers))
            )
        axis = par.Axis.of(None)
        par.shard(
            self.model, axis, 3, unit=nn.Linear, offload="disk", offload_folder=folder, prefetch=2
        )
        self.optimizer = par.ZeroOptimizer(torch.optim.AdamW, self.model, lr=1e-5)
        self._x = torch.zeros(1, width)
        self.model(self._x).sum().backward()
        self.optimizer.step()

    def measure(self, what: str) -> float:
        """Return the seconds of a step, or of a forward pass with one sample."""
        begin = time.perf_counter()
        if what == "step":
            self.optimizer.step()
        else:
            with torch.no_grad():
                self.model(self._x)
        return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="folder on the disk; default: a temporary one")
    parser.add_argument("--mib", type=int, default=1024, help="of training state")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures of every round"
    )
    parser.add_argument("--smoke", action="store_true", help="smoke test: little data")
    options = parser.parse_args()
    if options.smoke:
        options.mib, options.rounds = 256, 1
    with temporary_folder() as temporary:
        par.init()
        folder = options.folder or temporary
        state_bytes = options.mib * MIB
        ours = Ours(folder, state_bytes)
        store = sharded_of(ours.model).store
        assert store is not None
        print(f"{folder}, {'direct' if store.file.is_direct else 'buffered'} I/O")
        jobs = [Bare(folder, state_bytes), ours]
        measured = figures.interleave(jobs, {one: (one,) for one in ALIKE}, options.rounds)
    for case, moved in (("gather", 1 / 4), ("step", 7 / 4)):
        of_case = {case: measured[case]}
        print("\n".join(figures.medians(of_case, "ms", 1e3)))
        rates = [moved * options.mib / one for one in measured[case]["offload"]]
        print(f"{case}: MiB/s {figures.spread(rates)}")
        of_disk = figures.ratios(measured[case], "bare disk", "offload")
        print(f"{case}: of what the disk does {figures.spread(of_disk)}")
    figures.write(options.json, measured, mib=options.mib)


if __name__ == "__main__":
    main()
