"""Memory of a rank when a transformer's blocks are divided, beside formulas.

    python benchmarks/parallel_memory.py [--ranks 2,4]

Trains blocks (no embeddings) with AdamW in float32, on one process and divided in each way. "state"
is parameters, gradients and AdamW's two moments, as the tensors' sizes say. "activations" is the
most that autograd has saved at any time, each storage once, without parameters. "PSS" is how much
the proportional set size of the process (/proc/self/smaps_rollup) has grown since before the model
was made, at the most, looked at after each block's forward pass in the second step: then the state
and the activations are there together. All in MiB, of the rank that has most.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import nn

import horoscale.torch as hvd
import horoscale.torch.parallel as par

MIB = 1 << 20
WAYS = ("tp", "tp, sequence", "cp", "pp")
SECONDS = 200


class Block(nn.Module):
    """Attention and an MLP, each behind a norm."""

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
    """What autograd keeps for backward passes: how many bytes now, and at the most."""

    def __init__(self, parameters: Iterator[nn.Parameter]) -> None:
        self._never = {one.untyped_storage().data_ptr() for one in parameters}
        self._times: Counter[int] = Counter()  # each storage has been saved, by its address
        self._bytes = self.most = 0

    def count(self) -> AbstractContextManager[object]:
        """Make the context in which what is saved counts."""
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


def run_rank(options: argparse.Namespace) -> None:
    """Train two steps, and print what was counted on the rank that has most."""
    way, sequence = options.way.split(",")[0], "sequence" in options.way
    torch.set_num_threads(1)
    hvd.init()
    mesh = par.init(**({} if way == "one" else {way: hvd.size()}))
    shape = (options.batch, options.length, options.width)
    warm_up(options, mesh)
    hvd.barrier()
    before = proportional_set_size()

    layers = options.layers // mesh.pp.size
    model = nn.Sequential(*(Block(options, mesh, sequence) for _ in range(layers)))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    saved = Saved(model.parameters())
    grown = [0]
    x = torch.randn(shape)
    if sequence:
        x = par.shard_sequence(x, mesh.tp, 1, "contiguous").clone()
    x = par.shard_sequence(x, mesh.cp).clone()
    step = make_step(model, x, mesh, saved, options)
    for index in range(2):
        if index:
            for block in model:
                block.register_forward_hook(
                    lambda *_: grown.append(proportional_set_size() - before)
                )
        step()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    moments = [
        value
        for of_one in optimizer.state.values()
        for value in of_one.values()
        if torch.is_tensor(value)
    ]
    state = [*model.parameters(), *(one.grad for one in model.parameters()), *moments]
    counted = [sum(one.nbytes for one in state), saved.most, max(grown)]
    most = hvd.allreduce(torch.tensor(counted), op=hvd.Max)
    if hvd.rank() == 0:
        print(json.dumps(most.tolist()))
    hvd.shutdown()


def make_step(
    model: nn.Module, x: torch.Tensor, mesh: par.Mesh, saved: Saved, options: argparse.Namespace
) -> Callable[[], object]:
    """Return what computes all gradients of a batch."""
    if mesh.pp.size > 1:
        stages = [model if stage == mesh.pp.rank else None for stage in range(mesh.pp.size)]
        pipe = par.Pipeline(
            *(stages, mesh.pp),
            loss=lambda y, _: y.square().mean(),
            microbatches=options.batch,
            activations=saved.count,
        )
        return lambda: pipe.step(x, x)

    def step() -> None:
        with saved.count():
            loss = model(x).square().mean()
        loss.backward()

    return step


def warm_up(options: argparse.Namespace, mesh: par.Mesh) -> None:
    """Load the libraries and have the memory that every program has that computes anything."""
    layer = nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(layer.parameters(), foreach=False)
    layer(torch.ones(64, 64)).sum().backward()
    optimizer.step()
    for axis in (mesh.tp, mesh.cp, mesh.pp):
        if axis.set is not None:
            hvd.allreduce(torch.ones(64), process_set=axis.set)


def proportional_set_size() -> int:
    """Return the bytes of this process' memory; of what others share, its part."""
    gc.collect()
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    (size,) = (int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return size * 1024


def formulas(options: argparse.Namespace, way: str, ranks: int) -> tuple[float, float]:
    """Return the bytes of state and activations that docs/parallel.md says."""
    h, layers = options.width, options.layers
    tokens = options.batch * options.length
    tp, cp, pp = (ranks if way.startswith(axis) else 1 for axis in ("tp", "cp", "pp"))
    sequence = tp if "sequence" in way else 1
    # Norms and the biases of the second layers, which the first rank has, are whole.
    parameters = layers / pp * ((12 * h * h + 7 * h) / tp + 6 * h)
    activations = layers / cp * tokens * h * (4 / sequence + 12 / tp)
    if pp > 1:  # each rank has so many layers, of so many microbatches
        activations *= min(options.batch, pp) / options.batch / pp
    return 4 * 4 * parameters, 4 * activations


def measure(options: argparse.Namespace, way: str, ranks: int) -> list[float]:
    """Run the ranks of one way; return what they have counted."""
    sizes = (f"--{one}={getattr(options, one)}" for one in SIZES)
    command = [sys.executable, "-m", "horoscale.runner", "-np", str(ranks)]
    command += [sys.executable, __file__, "--way", way, *sizes]
    done = subprocess.run(
        command,
        env=os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{way} on {ranks} ranks has failed; its output is above")
    counted: list[float] = json.loads(done.stdout.partition("<stdout>:")[2])
    return counted


SIZES = {"width": 256, "heads": 8, "layers": 8, "length": 256, "batch": 8}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", default="2,4", help="how many, comma-separated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures, in bytes")
    parser.add_argument("--smoke", action="store_true", help="little, on 2 ranks: does it run?")
    parser.add_argument("--way", help=argparse.SUPPRESS)  # the ranks' own call
    for name, value in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    if options.way:
        run_rank(options)
        return
    if options.smoke:
        options.ranks, options.width, options.layers, options.length = "2", 32, 2, 64
    ways = ["tp, sequence"] if options.smoke else WAYS
    cases = [("one", 1), *((way, int(n)) for n in options.ranks.split(",") for way in ways)]
    print("| | ranks | state | formula | activations | formula | PSS | both formulas |")
    print("|---|---|---|---|---|---|---|---|")
    figures = {}
    for way, ranks in cases:
        state, activations = formulas(options, way, ranks)
        counted = measure(options, way, ranks)
        figures[f"{way}, {ranks} ranks"] = dict(
            zip(("state", "activations", "PSS"), counted, strict=True)
        )
        cells = (counted[0], state, counted[1], activations, counted[2], state + activations)
        print(
            f"| {way} | {ranks} |" + "".join(f" {cell / MIB:.1f} |" for cell in cells), flush=True
        )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
