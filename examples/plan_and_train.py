"""Plans how to divide a model, and trains with the plan.

    horoscalerun -np 4 python examples/plan_and_train.py --memory 64MiB

Measures the ranks and their links, compares all ways to divide the model, prints the best ones as a
table, and trains with the fastest one (or with --choice). The losses are always those of one
process.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

import horoscale.torch as hvd
import horoscale.torch.parallel as par

PLAN = {"*.up": "column", "*.down": "row"}  # how layers are divided over tp


class Block(nn.Module):
    """A layer of a residual network."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def batch_of(step: int, rows: int, width: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the inputs and targets of a step, the same on all ranks."""
    generator = torch.Generator().manual_seed(step)
    target = torch.randint(classes, (rows,), generator=generator)
    noise = torch.randn(rows, width, generator=generator)
    return nn.functional.one_hot(target, width) * 4.0 + noise, target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=64, help="rows per step, of all ranks")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--memory", help="memory of a rank, such as 64MiB (default: no limit)")
    parser.add_argument("--zero", type=int, nargs="+", default=[0], help="ZeRO stages to consider")
    parser.add_argument("--choice", type=int, default=0, help="row of the table (default: 0)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    hvd.init(process_sets="dynamic")
    torch.manual_seed(1)
    blocks = [Block(options.width) for _ in range(options.layers)]
    model = nn.Sequential(*blocks, nn.Linear(options.width, 10))
    batches = [batch_of(step, options.batch, options.width, 10) for step in range(options.steps)]

    planned = par.plan(
        model,
        batches[0],
        loss=nn.functional.cross_entropy,
        tensor_parallel=PLAN,
        memory=options.memory,
        stages=options.zero,
    )
    if hvd.rank() == 0:
        print(planned)
    mesh = planned.apply(options.choice)
    pipe = planned.pipeline(mesh)
    chosen = planned.costs[options.choice].strategy
    if chosen.stage:
        optimizer = par.ZeroOptimizer(torch.optim.AdamW, pipe.module)
    else:
        optimizer = par.DistributedOptimizer(
            torch.optim.AdamW(pipe.parameters()),
            pipe.module,
            mesh,
            backward_passes_per_step=chosen.microbatches,
        )
    for step, batch in enumerate(batches):
        x, target = (one.chunk(mesh.dp.size)[mesh.dp.rank] for one in batch)  # this rank's rows
        optimizer.zero_grad()
        loss = pipe.step(x, target)
        optimizer.step()
        if mesh.dp.set is not None:
            loss = hvd.allreduce(loss, op=hvd.Average, process_set=mesh.dp.set)
        if hvd.rank() == 0 and (step % 5 == 0 or step == options.steps - 1):
            print(f"step {step}: loss {float(loss):.6f}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
