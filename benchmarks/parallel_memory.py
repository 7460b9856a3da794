"""Measures the memory of a rank for divided transformer blocks, compared with formulas.

    python benchmarks/parallel_memory.py [--ranks 2,4]

Trains blocks (without embeddings) with AdamW in float32, in one process and divided in each way.
"state" is parameters, gradients and AdamW's two moments, by the sizes of the tensors. "activations"
is the maximum that autograd saves at any time, each storage once, without parameters. "tensors" is
the peak of all tensors that PyTorch's MemTracker counts in a step (not for pp: it does not support
modules that run once for each microbatch). "PSS" is the peak of the proportional set size of the
process (/proc/self/smaps_rollup, without files) after any operation, minus the value after a
smaller model of the same kind had been trained, so that libraries and connections do not count.
"shared" is the shared memory in it: buffers of messages, and activations of stages. glibc returns
the memory of each tensor to the system (MALLOC_MMAP_THRESHOLD_); with its own thresholds, memory
that it keeps would count, too. All values are in MiB, for the rank that needs most.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils._python_dispatch import TorchDispatchMode

import horoscale.torch as hvd
import horoscale.torch.parallel as par

MIB = 1 << 20
WAYS = ("tp", "tp, sequence", "cp", "pp")
KINDS = ("PSS", "shared")
ALLOCATOR = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(1 << 16)}
SECONDS = 200


class Block(nn.Module):
    """Attention and an MLP, each after a norm."""

    def __init__(self, options: argparse.Namespace, mesh: par.Mesh, sequence: bool) -> None:
        super().__init__()
        width, tp = options.width, mesh.tp
        how: dict[str, Any] = {"sequence_parallel": sequence, "sequence_dim": 1}
        norms = [par.LayerNorm(width, tp if sequence else None) for _ in range(2)]
        attend = None
        if mesh.cp.size > 1:
            attend = lambda q, k, v: par.ring_attention(q, k, v, mesh.cp, causal=True)  # noqa: E731
        attention = par.ParallelAttention(width, options.heads, tp, attend=attend, **how)
        mlp = par.ParallelMLP(width, 4 * width, tp, **how)
        self.halves = nn.ModuleList(
            nn.Sequential(norm, half) for norm, half in zip(norms, (attention, mlp), strict=True)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for half in self.halves:
            x = x + half(x)
        return x


class Saved:
    """Counts the bytes that autograd saves for backward passes, now and at the peak."""

    def __init__(self, parameters: Iterator[nn.Parameter]) -> None:
        self._never = {one.untyped_storage().data_ptr() for one in parameters}
        self._times: Counter[int] = Counter()  # saved storages, by address
        self._bytes = self.most = 0

    def count(self) -> AbstractContextManager[object]:
        """Create the context in which saved tensors are counted."""
        return torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: _Kept(self, tensor.detach()), lambda kept: kept.tensor
        )

    def add(self, storage: torch.UntypedStorage, times: int) -> None:
        address, size = storage.data_ptr(), storage.nbytes()
        if address in self._never:
            return
        before = self._times[address]
        self._times[address] += times
        if not before or not self._times[address]:
            self._bytes += times * size
            self.most = max(self.most, self._bytes)


class _Kept:
    def __init__(self, saved: Saved, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self._saved = saved
        saved.add(tensor.untyped_storage(), 1)

    def __del__(self) -> None:
        self._saved.add(self.tensor.untyped_storage(), -1)


class Operations(TorchDispatchMode):
    """Finds the operation of a step after which a process has most memory, and reads it there."""

    def __init__(self, look_after: int | None = None) -> None:
        super().__init__()
        self.number = self.most = self.of_most = 0
        self.look_after = look_after
        self.seen: dict[str, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.number += 1
        if self.look_after is None:
            resident = int(Path("/proc/self/statm").read_text().split()[1])  # cheap: a counter
            if resident > self.most:
                self.most, self.of_most = resident, self.number
        elif self.number == self.look_after:
            self.seen = proportional_set_size()
        return result


class Training:
    """A model of some layers, or this rank's part of it, and its training step."""

    def __init__(self, options: argparse.Namespace, mesh: par.Mesh, layers: int) -> None:
        sequence = "sequence" in options.way
        blocks = (Block(options, mesh, sequence) for _ in range(layers // mesh.pp.size))
        self.model = nn.Sequential(*blocks)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), foreach=False)
        self.saved = Saved(self.model.parameters())
        x = torch.randn(options.batch, options.length, options.width)
        if sequence:
            x = par.shard_sequence(x, mesh.tp, 1, "contiguous").clone()
        x = par.shard_sequence(x, mesh.cp).clone()
        self._gradients = make_step(self.model, x, mesh, self.saved, options)

    def step(self) -> None:
        """Train on the batch."""
        self._gradients()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)

    def state(self) -> list[torch.Tensor]:
        """Return parameters, gradients and optimizer state."""
        moments = (one for of_one in self.optimizer.state.values() for one in of_one.values())
        parameters = list(self.model.parameters())
        gradients = [one.grad for one in parameters if one.grad is not None]
        return [*parameters, *gradients, *filter(torch.is_tensor, moments)]


def run_rank(options: argparse.Namespace) -> None:
    """Train four steps, and print the counts of the rank that has most."""
    way = options.way.split(",")[0]
    torch.set_num_threads(1)
    hvd.init()
    mesh = par.init(**({} if way == "one" else {way: hvd.size()}))
    small = argparse.Namespace(**vars(options) | {"width": 64, "length": 64})
    warm_up = Training(small, mesh, mesh.pp.size)
    for _ in range(2):
        warm_up.step()
    del warm_up
    hvd.barrier()
    before = proportional_set_size()

    training = Training(options, mesh, options.layers)
    training.step()
    with Operations() as operations:
        training.step()
    with Operations(operations.of_most) as at_peak:
        training.step()
    tensors = 0 if mesh.pp.size > 1 else count_tensors(training)
    grown = [at_peak.seen[kind] - before[kind] for kind in KINDS]
    state = sum(one.nbytes for one in training.state())
    counted = [state, training.saved.most, tensors, *grown]
    most = hvd.allreduce(torch.tensor(counted), op=hvd.Max)
    if hvd.rank() == 0:
        print(json.dumps(most.tolist()))
    hvd.shutdown()


def count_tensors(training: Training) -> int:
    """Return the peak bytes of all tensors in a step, as counted by PyTorch's MemTracker."""
    tracker = MemTracker()
    tracker.track_external(training.model, training.optimizer)
    with tracker:
        training.step()
    return sum(of["Total"] for of in tracker.get_tracker_snapshot("peak").values())


def make_step(
    model: nn.Module, x: torch.Tensor, mesh: par.Mesh, saved: Saved, options: argparse.Namespace
) -> Callable[[], object]:
    """Return a function that computes all gradients of a batch."""
    if mesh.pp.size > 1:
        stages = [model if stage == mesh.pp.rank else None for stage in range(mesh.pp.size)]
        pipe = par.Pipeline(
            *(stages, mesh.pp),
            loss=lambda y, _: y.mean(),
            microbatches=options.batch,
            activations=saved.count,
        )
        return lambda: pipe.step(x, x)

    def step() -> None:
        with saved.count():
            loss = model(x).mean()
        loss.backward()

    return step


def proportional_set_size() -> dict[str, int]:
    """Return the bytes of this process' memory; shared memory counts by its share.

    Files are excluded, because mapped libraries count by the number of processes that map them.
    """
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    found = dict(line.split(":") for line in lines[1:])
    anonymous, shared = (int(found[kind].split()[0]) * 1024 for kind in ("Pss_Anon", "Pss_Shmem"))
    return {"PSS": anonymous + shared, "shared": shared}


def formulas(options: argparse.Namespace, way: str, ranks: int) -> tuple[float, float, float]:
    """Return the bytes of state, activations and the backward pass (docs/parallel_costs.md)."""
    h, layers, heads = options.width, options.layers, options.heads
    tokens = options.batch * options.length
    tp, cp, pp = (ranks if way.startswith(axis) else 1 for axis in ("tp", "cp", "pp"))
    sequence = tp if "sequence" in way else 1
    # Norms, and the biases of the second layers (on the first rank), are not divided.
    parameters = layers / pp * ((12 * h * h + 7 * h) / tp + 6 * h)
    of_layer = tokens / cp * ((4 * h + 4) / sequence + (12 * h + heads) / tp)
    activations = layers * of_layer
    backward = tokens / cp * h * (1 + 4 / tp)
    if sequence > 1:
        backward = tokens * h * (2 + 6 / tp)
    if pp > 1:  # layers of a rank, microbatches in flight
        in_flight = min(options.batch, pp) / options.batch  # each rank saves its part of the batch
        activations = layers / pp * of_layer * in_flight + tokens * h * (1 - in_flight)
        backward /= options.batch
    return 16 * parameters, 4 * activations, 4 * (backward + 4 * h * h / tp)


def run_job(ranks: int, program: str, arguments: Sequence[str], seconds: float) -> list[float]:
    """Run a program as a job that returns freed memory to the system; return its ranks' counts."""
    command = [sys.executable, "-m", "horoscale.runner", "-np", str(ranks)]
    done = subprocess.run(
        [*command, sys.executable, program, *arguments],
        env=os.environ | ALLOCATOR | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=seconds,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(arguments)} on {ranks} ranks has failed; its output is above")
    counted: list[float] = json.loads(done.stdout.partition("<stdout>:")[2])
    return counted


def measure(options: argparse.Namespace, way: str, ranks: int) -> list[float]:
    """Run the ranks of one way; return their counts."""
    sizes = (f"--{one}={getattr(options, one)}" for one in SIZES)
    return run_job(ranks, __file__, ["--way", way, *sizes], SECONDS)


SIZES = {"width": 256, "heads": 8, "layers": 8, "length": 256, "batch": 8}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", default="2,4", help="how many, comma-separated")
    parser.add_argument(
        "--ways", default=";".join(WAYS), help="ways to measure, separated by semicolons"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures, in bytes")
    parser.add_argument("--smoke", action="store_true", help="smoke test: a small model on 2 ranks")
    parser.add_argument("--way", help=argparse.SUPPRESS)  # this process is a rank
    for name, value in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    if options.way:
        run_rank(options)
        return
    if options.smoke:
        options.ranks, options.width, options.layers, options.length = "2", 32, 2, 64
    ways = ["tp, sequence"] if options.smoke else options.ways.split(";")
    cases = [("one", 1), *((way, int(n)) for n in options.ranks.split(",") for way in ways)]
    names = ("state", "activations", "tensors", "PSS", "shared")
    print(
        "| | ranks | state | formula | activations | formula | tensors | PSS | shared | formula |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    figures = {}
    for way, ranks in cases:
        state, activations, backward = formulas(options, way, ranks)
        counted = measure(options, way, ranks)
        figures[f"{way}, {ranks} ranks"] = dict(zip(names, counted, strict=True))
        cells = (counted[0], state, counted[1], activations, *counted[2:])
        cells = (*cells, state + activations + backward)
        print(
            f"| {way} | {ranks} |"
            + "".join(f" {cell / MIB:.1f} |" if cell else " |" for cell in cells),
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
