"""Compares the memory that par.memory() predicts with the memory that training uses.

    python benchmarks/planned_memory.py [--models mlp,transformer,…] [--ways "dp=2;…"]

Each model is trained in each way in its own job, on 2 ranks. "tensors" is the peak that
par.watch_memory() counts: all tensors, and memory shared with other ranks. "PSS" is the growth of
the proportional set size of the process (/proc/self/smaps_rollup, without files) since the ranks
had connected and trained a small model, read after the operation after which a step has most. The
excess over "tensors" is fragmentation of the allocator: partly used pages, and pieces too small to
be reused. glibc returns the memory of each large tensor to the system (MALLOC_MMAP_THRESHOLD_), as
in benchmarks/parallel_memory.py. All values are in MiB, for the rank that needs most.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from parallel_memory import KINDS, Operations, proportional_set_size, run_job
from torch import nn

import horoscale.torch as hvd
import horoscale.torch.parallel as par
from horoscale.torch.parallel.planning.machine import Link, Machine

sys.path.append(str(Path(__file__).parents[1] / "tests" / "python"))
from support.planning_models import PLAN, TRANSFORMER_PLAN, Block, Half, cross_entropy

MIB = 1 << 20
SECONDS = 120
WORDS = 2000
MACHINE = Machine(1e10, 1e10, 2, Link(1e-5, 1e9), Link(1e-5, 1e9), None, None, 0.0)
MODELS = ("mlp", "transformer", "bfloat16", "embeddings", "convolutions")
WAYS = (
    "dp=2", "dp=2 microbatches=4", "dp=2 recompute",
    "dp=2 recompute=sqrt", "dp=2 recompute=selective", "tp=2", "pp=2", "pp=2 microbatches=4",
    "dp=2 stage=1", "dp=2 stage=2", "dp=2 stage=3",
)  # fmt: skip


class Convolutions(nn.Module):
    """Two convolutions with a norm each, and a residual."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(x + self.norms[1](self.second(y)))


def make(kind: str) -> tuple[nn.Sequential, tuple[torch.Tensor, torch.Tensor]]:
    """A model, and the batch of a step."""
    torch.manual_seed(1)
    if kind == "mlp":
        model = nn.Sequential(*(Half(512, 2048) for _ in range(6)), nn.Linear(512, 10))
        return model, (torch.randn(256, 512), torch.randint(10, (256,)))
    if kind == "convolutions":
        ends = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
        layers = [nn.Conv2d(3, 64, 3, padding=1), *(Convolutions(64) for _ in range(4)), *ends]
        return nn.Sequential(*layers), (torch.randn(16, 3, 32, 32), torch.randint(10, (16,)))
    width, layers_of, vocabulary = (256, 1, 20_000) if kind == "embeddings" else (384, 4, WORDS)
    words = torch.randint(vocabulary, (8, 128))
    blocks = [Block(width) for _ in range(layers_of)]
    if kind == "embeddings":
        words = words[:, :32]
    model = nn.Sequential(nn.Embedding(vocabulary, width), *blocks, nn.Linear(width, vocabulary))
    if kind == "bfloat16":
        model = model.bfloat16()
    return model, (words, words.roll(-1, 1))


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Of logits, in float32."""
    return cross_entropy(output.float(), target)


def run_rank(kind: str, way: str) -> None:
    """Train in one way, and print predicted, counted and used bytes."""
    torch.set_num_threads(1)
    hvd.init(process_sets="dynamic")
    small = nn.Linear(64, 64)
    warm_up = hvd.DistributedOptimizer(torch.optim.AdamW(small.parameters()))
    for _ in range(2):
        warm_up.zero_grad()
        small(torch.randn(8, 64)).sum().backward()
        warm_up.step()
    hvd.barrier()
    before = proportional_set_size()
    model, batch = make(kind)
    axis = way.partition("=")[0]
    parts = dict(one.split("=") for one in way.split()[1:] if "=" in one)
    planned = par.plan(
        model,
        batch,
        loss=loss_of,
        tensor_parallel=PLAN if kind == "mlp" else TRANSFORMER_PLAN,
        axes=[axis],
        stages=[int(parts.get("stage", 0))],
        microbatches=[int(parts.get("microbatches", 1))],
        recompute=[parts.get("recompute", "recompute" in way)],
        machine=MACHINE,
    )
    mesh = planned.apply()
    pipe = planned.pipeline(mesh)
    strategy = planned.best.strategy
    said = par.memory(
        make(kind)[0], batch, strategy, loss=loss_of, cuts=planned.best.cuts,
        tensor_parallel=PLAN if kind == "mlp" else TRANSFORMER_PLAN,
    ).ranks[mesh.pp.rank]  # fmt: skip
    del planned, model
    number = strategy.microbatches
    optimizer: Any
    if strategy.stage:
        optimizer = par.ZeroOptimizer(torch.optim.AdamW, pipe.module)
    else:
        passes = {"backward_passes_per_step": number} if mesh.dp.size > 1 else {}
        plain = torch.optim.AdamW(pipe.parameters())
        optimizer = par.DistributedOptimizer(plain, pipe.module, mesh, **passes)
    x, target = (one.chunk(mesh.dp.size)[mesh.dp.rank].clone() for one in batch)

    def step() -> None:
        optimizer.zero_grad()
        pipe.step(x, target)
        optimizer.step()

    step()
    with Operations() as operations:
        step()
    with Operations(operations.of_most) as at_peak:
        step()
    grown = at_peak.seen[KINDS[0]] - before[KINDS[0]]
    with par.watch_memory(pipe.module, optimizer) as watch:
        step()
    assert watch.peak is not None
    counted = torch.tensor([said.total, watch.peak.total - before["shared"], grown])
    most = hvd.allreduce(counted, op=hvd.Max)
    if hvd.rank() == 0:
        print(json.dumps(most.tolist()))
    hvd.shutdown()


def measure(kind: str, way: str, ranks: int) -> list[float]:
    """Run the ranks of one way; return their counts."""
    return run_job(ranks, __file__, ["--model", kind, "--way", way], SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(MODELS), help="which, comma-separated")
    parser.add_argument(
        "--ways", default=";".join(WAYS), help="ways to measure, separated by semicolons"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures, in bytes")
    parser.add_argument("--smoke", action="store_true", help="smoke test: one model, one way")
    parser.add_argument("--model", help=argparse.SUPPRESS)  # this process is a rank
    parser.add_argument("--way", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        run_rank(options.model, options.way)
        return
    models, ways = options.models.split(","), options.ways.split(";")
    if options.smoke:
        models, ways = ["mlp"], ["dp=2"]
    print("| | predicted | tensors | predicted / tensors | PSS | PSS / tensors |")
    print("|---|---|---|---|---|---|")
    found = {}
    for kind in models:
        for way in ways:
            if way.startswith("tp") and kind == "convolutions":
                continue  # the plan divides nothing
            said, tensors, grown = found[f"{kind}, {way}"] = measure(kind, way, 2)
            sizes = " | ".join(f"{one / MIB:.1f}" for one in (said, tensors))
            print(
                f"| {kind}, {way} | {sizes} | {said / tensors:.2f} | {grown / MIB:.1f} | "
                f"{grown / tensors:.2f} |",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
