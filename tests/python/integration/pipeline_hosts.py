"""One rank of a pipeline between hosts, which compares its results with those of one process.

    python pipeline_hosts.py SCHEDULE

It prints whether the losses and gradients of its steps have the same bits.
"""

from __future__ import annotations

import sys

import torch
from torch import nn

import horoscale.torch as hvd
import horoscale.torch.parallel as par

FEATURES, ROWS, MICROBATCHES = 256, 200, 3  # messages exceed the eager size
STEPS = 4
mse = nn.functional.mse_loss


def stages(number: int) -> list[nn.Module]:
    torch.manual_seed(number)
    return [
        nn.Sequential(
            nn.Linear(FEATURES, FEATURES), nn.GELU(), nn.Linear(FEATURES, FEATURES)
        ).double()
        for _ in range(number)
    ]


def alone(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Run the microbatches sequentially; return the loss."""
    total = torch.zeros((), dtype=x.dtype)
    for part in x.tensor_split(MICROBATCHES):
        loss = mse(model(part), part.sin()) * (len(part) / len(x))
        loss.backward()
        total += loss.detach()
    return total


def main() -> None:
    schedule = sys.argv[1]
    hvd.init()
    torch.set_num_threads(1)
    mesh = par.init(pp=hvd.size())
    number = hvd.size() * (2 if schedule == "interleaved" else 1)
    pipe = par.Pipeline(
        stages(number), mesh.pp, loss=mse, schedule=schedule, microbatches=MICROBATCHES
    )
    model = nn.Sequential(*stages(number))
    optimizers = [torch.optim.AdamW(one.parameters(), 0.01) for one in (pipe, model)]
    same = True
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        # The same number of rows as before, then fewer.
        x = torch.randn(ROWS - step // 3, FEATURES, dtype=torch.float64)
        x = hvd.broadcast(x, 0)
        same &= torch.equal(pipe.step(x, x.sin()), alone(model, x))
        for index, stage in pipe.stages.items():
            pairs = zip(stage.parameters(), model[index].parameters(), strict=True)
            same &= all(torch.equal(ours.grad, theirs.grad) for ours, theirs in pairs)
        for optimizer in optimizers:
            optimizer.step()
    print(f"rank {hvd.rank()}: the same bits: {same}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
