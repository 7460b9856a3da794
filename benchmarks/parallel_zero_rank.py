"""One rank that trains a transformer whose state is divided, for benchmarks/parallel_zero.py."""

from __future__ import annotations

import argparse
import gc
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from orders import serve, times
from torch import nn

HEADS = 4
Look = Callable[[], None]


class Block(nn.Module):
    """Attention and an MLP, each after a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.norms[0](x)).chunk(3, -1)
        q, k, v = (one.unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in parts)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class Transformer(nn.Module):
    """Compute the mean loss of the next words; the embedding is tied."""

    def __init__(self, width: int, layers: int, words: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.table(words[:, :-1])
        for block in self.blocks:
            x = block(x)
        logits = self.norm(x) @ self.table.weight.T
        return nn.functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())


class Training:
    """A model and its optimizer."""

    def __init__(self, model: nn.Module, optimizer: Any, words: torch.Tensor) -> None:
        self.model = model
        self._optimizer = optimizer
        self._words = words

    def step(self, look: Look = lambda: None) -> None:
        self.model(self._words).backward()
        look()
        self._optimizer.step()
        look()
        self._optimizer.zero_grad()


def proportional_set_size() -> int:
    """Return the bytes of this process' memory; shared memory counts by its share."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    (size,) = (int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return size * 1024


def warm_up() -> None:
    """Allocate the memory that every training program has."""
    layer = nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(64, 64)).sum().backward()
    optimizer.step()


def make(way: str, rank: int) -> Training:
    """Create the model, divide its state, and create the optimizer."""
    width, layers, words, samples, positions = json.loads(os.environ["ZERO_SIZE"])
    torch.manual_seed(0)
    model: Any = Transformer(width, layers, words)
    generator = torch.Generator().manual_seed(rank)
    batch = torch.randint(words, (samples, positions + 1), generator=generator)
    adamw = torch.optim.AdamW
    if way.startswith("stage"):
        import horoscale.torch as hvd
        import horoscale.torch.parallel as par

        axis = par.Axis.of(hvd.global_process_set, "dp")
        offload = "disk" if way.endswith("on disk") else None
        par.shard(model, axis, int(way.split()[1]), unit=Block, offload=offload)
        return Training(model, par.ZeroOptimizer(adamw, model), batch)
    if way == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        return Training(model, adamw(model.parameters()), batch)
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    parallel = DistributedDataParallel(model)
    if way == "ddp":
        return Training(parallel, adamw(model.parameters()), batch)
    optimizer = ZeroRedundancyOptimizer(parallel.parameters(), optimizer_class=adamw)
    return Training(parallel, optimizer, batch)


def join(implementation: str) -> int:
    """Join the job; return the rank."""
    if implementation == "horoscale":
        import horoscale.torch as hvd

        hvd.init()
        hvd.allreduce(torch.ones(64))
        return int(hvd.rank())
    from torch import distributed

    rank, size = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    where = f"file://{os.environ['JOB_FILE']}"
    distributed.init_process_group("gloo", where, rank=rank, world_size=size)
    distributed.all_reduce(torch.ones(64))
    return rank


def peak_memory(way: str, rank: int) -> float:
    """Return the peak bytes of two steps."""
    warm_up()
    gc.collect()
    before = proportional_set_size()
    seen = []

    def look(*_: object) -> None:
        seen.append(proportional_set_size() - before)

    training = make(way, rank)
    look()
    training.step()
    model = getattr(training.model, "module", training.model)
    for block in model.blocks:
        block.register_forward_hook(look)
    training.step(look)
    return float(max(seen))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("implementation", choices=["horoscale", "gloo"])
    parser.add_argument("address", help="address of the benchmark")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rank = join(arguments.implementation)
    trainings: dict[str, Training] = {}

    def measure(way: str, what: str, count: int) -> list[float]:
        if what == "memory":
            return [peak_memory(way, rank)]
        if way not in trainings:
            trainings[way] = make(way, rank)
            trainings[way].step()
        return times(trainings[way].step, count, warm_up=1)

    serve(arguments.address, measure)


if __name__ == "__main__":
    main()
