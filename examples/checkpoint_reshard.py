"""Continues training from a checkpoint, on any number of ranks and any mesh.

    horoscalerun -np 2 python examples/checkpoint_reshard.py --tp 2 --steps 20
    horoscalerun -np 4 python examples/checkpoint_reshard.py --tp 2 --pp 2 --steps 40
    python examples/checkpoint_reshard.py --steps 60

Each run continues from the newest checkpoint in ./checkpoints, whichever mesh has written it:

    on Mesh(tp=2, cp=1, dp=1, pp=2), from checkpoint-000000000020
    step  20: loss 0.026418138101
    ...

The losses are those of an uninterrupted run. A checkpoint is written every 10 steps, while training
continues.
"""

from __future__ import annotations

import argparse
from collections import OrderedDict
from typing import Any

import torch
from torch import nn

import horoscale.torch as hvd
import horoscale.torch.parallel as par

WIDTH = 24
SAMPLES = 32


class Block(nn.Module):
    """A residual MLP whose features are divided among the ranks of an axis."""

    def __init__(self, axis: par.Axis) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mlp = par.ParallelMLP(WIDTH, 4 * WIDTH, axis)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mlp(self.norm(x))


def build(mesh: par.Mesh) -> Any:
    """Return the model, or this rank's stages of it."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(first=nn.Linear(2, WIDTH))
    layers |= {f"block{number}": Block(mesh.tp) for number in range(2)}
    layers["last"] = nn.Linear(WIDTH, 1)
    model = nn.Sequential(layers)
    if mesh.pp.size == 1:
        return model
    # The parameters of stages keep the names they have in the model, so any mesh finds them.
    stages = par.split(model, mesh.pp.size, costs=[1.0] * len(layers))
    return par.Pipeline(stages, mesh.pp, loss=nn.functional.mse_loss, microbatches=2)


def batch(step: int, mesh: par.Mesh) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this rank's part of the samples of a step."""
    generator = torch.Generator().manual_seed(step)
    x = torch.rand(SAMPLES, 2, generator=generator, dtype=torch.float64) * 2 - 1
    x = x.chunk(mesh.dp.size)[mesh.dp.rank]
    return x, (3 * x[:, :1] * x[:, 1:]).sin()


def train(model: Any, optimizer: Any, step: int, mesh: par.Mesh) -> float:
    """Run a step; return the mean loss of all samples."""
    x, target = batch(step, mesh)
    optimizer.zero_grad()
    if isinstance(model, par.Pipeline):
        loss = model.step(x, target)
    else:
        loss = nn.functional.mse_loss(model(x), target)
        loss.backward()
    optimizer.step()
    of_data = mesh.dp.set
    loss = loss.detach()
    return float(loss if of_data is None else hvd.allreduce(loss, process_set=of_data))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tp", type=int, default=1, help="ranks that share each layer")
    parser.add_argument("--pp", type=int, default=1, help="ranks among which layers are divided")
    parser.add_argument("--steps", type=int, default=60, help="last step of training")
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument(
        "--directory", default="checkpoints", help="folder that all ranks can access"
    )
    options = parser.parse_args()

    torch.set_default_dtype(torch.float64)
    mesh = par.init(tp=options.tp, pp=options.pp)
    if SAMPLES % mesh.dp.size:
        parser.error(f"the {SAMPLES} samples of a step can't be divided among {mesh.dp.size} ranks")
    torch.manual_seed(1)
    model = build(mesh)
    module = model.module if isinstance(model, par.Pipeline) else model
    par.broadcast_parameters(module, mesh)
    microbatches = 2 if isinstance(model, par.Pipeline) else 1
    optimizer = par.DistributedOptimizer(
        torch.optim.AdamW(module.parameters(), lr=0.01),
        module,
        mesh,
        backward_passes_per_step=microbatches,
    )
    first = 0
    newest = hvd.broadcast_object(par.latest_checkpoint(options.directory))
    if newest is not None:
        extra = par.load(newest, model, optimizer, mesh)
        assert extra is not None
        first = extra["step"]
    if hvd.rank() == 0:
        begun = "from the beginning" if newest is None else f"from {newest.name}"
        print(f"on {mesh}, {begun}", flush=True)
    for step in range(first, options.steps):
        loss = train(model, optimizer, step, mesh)
        if hvd.rank() == 0:
            print(f"step {step:3}: loss {loss:.12f}", flush=True)
        if (step + 1) % options.every == 0:
            # The values are copied immediately, and written during the next steps.
            done = {"step": step + 1}
            par.save(
                options.directory, model, optimizer, mesh, extra=done, asynchronous=True, **done
            )


if __name__ == "__main__":
    main()
