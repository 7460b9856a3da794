"""Trains one model with each pipeline schedule, and prints how they differ.

    horoscalerun -np 2 python examples/pipeline_schedules.py

The layers differ in size. They are timed, and divided into stages of similar cost. With all
schedules the weights are bitwise identical to those of one process:

    schedule         loss   waits   holds   as one process
    gpipe          0.3361   0.111       8   True
    1f1b           0.3361   0.111       2   True
    zb-h1          0.3361   0.040       2   True
    interleaved    0.3361   0.059       5   True

"waits" is the fraction of a step in which a rank is idle, if a forward pass and each half of a
backward pass take equally long. "holds" is the maximum number of microbatches of a stage whose
activations rank 0 keeps.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

import horoscale.torch as hvd
import horoscale.torch.parallel as par
from horoscale.torch.parallel.pipeline.schedule import Action, make_schedule
from horoscale.torch.parallel.pipeline.simulate import peak_activations, simulate

STEPS, BATCH, MICROBATCHES, WIDTH, CLASSES = 20, 64, 8, 32, 10
LAYERS = 16


class Block(nn.Module):
    """A layer of a residual network."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, inner), nn.Linear(inner, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)))


def make_model() -> nn.Sequential:
    """Create the model, always with the same weights; some layers are wider than others."""
    torch.manual_seed(1)
    layers = [Block(WIDTH * (1 + number % 4)) for number in range(LAYERS)]
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES)).double()


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the inputs and targets of a step."""
    generator = torch.Generator().manual_seed(step)
    target = torch.randint(CLASSES, (BATCH,), generator=generator)
    noise = torch.randn(BATCH, WIDTH, generator=generator, dtype=torch.float64)
    return nn.functional.one_hot(target, WIDTH) * 4.0 + noise, target


def train(schedule: str, axis: par.Axis) -> tuple[float, dict[str, torch.Tensor]]:
    """Train with a schedule; return the last loss, and the weights of this rank's stages."""
    number = axis.size * (2 if schedule == "interleaved" else 1)
    model = make_model()
    sample, _ = batch(0)
    stages = par.split(model, number, sample[: BATCH // MICROBATCHES], axis=axis)
    pipe = par.Pipeline(
        stages,
        axis,
        loss=nn.functional.cross_entropy,
        schedule=schedule,
        microbatches=MICROBATCHES,
    )
    optimizer = torch.optim.AdamW(pipe.parameters(), 0.003)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = pipe.step(*batch(step))
        optimizer.step()
    return loss.item(), {
        name: value
        for stage in pipe.stages.values()
        for name, value in stage.state_dict().items()  # names as in the model
    }


def train_alone() -> dict[str, torch.Tensor]:
    """Train in this process."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), 0.003)
    for step in range(STEPS):
        optimizer.zero_grad()
        for x, target in zip(*(part.chunk(MICROBATCHES) for part in batch(step)), strict=True):
            (nn.functional.cross_entropy(model(x), target) / MICROBATCHES).backward()
        optimizer.step()
    return model.state_dict()


def promises(schedule: str, ranks: int) -> tuple[float, int]:
    """Return the fraction of a step that rank 0 waits, and how many microbatches it holds."""
    chunks = 2 if schedule == "interleaved" else 1
    programs = make_schedule(schedule, ranks, MICROBATCHES, chunks)
    played = simulate(
        programs, ranks * chunks, lambda one: 2.0 if one.action is Action.BACKWARD else 1.0
    )
    return played.bubbles[0], peak_activations(programs[0])


def main() -> None:
    """Train with all schedules and in this process, and compare."""
    argparse.ArgumentParser(description=__doc__).parse_args()  # has no options
    torch.set_num_threads(1)  # the ranks share the cores
    hvd.init(process_sets="dynamic")
    mesh = par.init(pp=hvd.size())
    alone = train_alone()
    if mesh.pp.rank == 0:
        print("schedule         loss   waits   holds   as one process")
    for schedule in ("gpipe", "1f1b", "zb-h1", "interleaved"):
        loss, weights = train(schedule, mesh.pp)
        same = all(torch.equal(value, alone[name]) for name, value in weights.items())
        same = all(hvd.allgather_object(same))
        bubble, held = promises(schedule, mesh.pp.size)
        if mesh.pp.rank == 0:
            print(f"{schedule:<12} {loss:8.4f}   {bubble:.3f}   {held:5}   {same}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
