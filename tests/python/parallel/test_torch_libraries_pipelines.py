"""PyTorch's pipeline schedules over the backend of torch.distributed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from support.torch_libraries import MARKS, close, same_as_gloo
from torch import nn

import horoscale.torch as hvd

pytestmark = MARKS

GIVEN = torch.arange(64.0).view(8, 8) / 64
MICROBATCHES = 8


def layers(count: int) -> list[nn.Module]:
    torch.manual_seed(5)
    return [nn.Linear(8, 8) for _ in range(count)]


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().sum()


def stages_of(schedule: str) -> list[int]:
    """The stages of this rank."""
    size, rank = hvd.size(), hvd.rank()
    if schedule in ("ScheduleGPipe", "Schedule1F1B"):
        return [rank]
    if schedule in ("ScheduleZBVZeroBubble", "ScheduleDualPipeV"):
        return [rank, 2 * size - 1 - rank]
    return [rank, rank + size]


def run(schedule: str) -> list[torch.Tensor]:
    """A step; returns this rank's gradients, and the output if it has the last stage."""
    from torch.distributed import pipelining
    from torch.distributed.pipelining import schedules

    size = hvd.size()
    own = stages_of(schedule)
    modules = layers(len(own) * size)
    stages = [
        pipelining.PipelineStage(modules[number], number, len(modules), torch.device("cpu"))
        for number in own
    ]
    step: Any = getattr(schedules, schedule)(
        stages[0] if len(stages) == 1 else stages,
        n_microbatches=MICROBATCHES,
        loss_fn=loss,
        scale_grads=False,
    )
    arguments = (GIVEN,) if 0 in own else ()
    output = None
    if len(modules) - 1 in own:
        output = step.step(*arguments, target=torch.zeros(8, 8), losses=[])
    else:
        step.step(*arguments)
    gradients = [modules[number].weight.grad for number in own]
    return gradients if output is None else [*gradients, output]


@pytest.mark.parametrize(
    "schedule",
    [
        "ScheduleGPipe",
        "Schedule1F1B",
        "ScheduleLoopedBFS",
        "ScheduleInterleaved1F1B",
        "ScheduleInterleavedZeroBubble",
        "ScheduleZBVZeroBubble",
        "ScheduleDualPipeV",
    ],
)
def test_schedule(schedule: str) -> None:
    from torch.distributed.pipelining import schedules

    if not hasattr(schedules, schedule):
        pytest.skip("this PyTorch has no such schedule")
    got = same_as_gloo(lambda: run(schedule))
    own = stages_of(schedule)
    reference = nn.Sequential(*copy.deepcopy(layers(len(own) * hvd.size())))
    output = reference(GIVEN)
    loss(output, torch.zeros(8, 8)).backward()
    wanted: list[Any] = [reference[number].weight.grad for number in own]
    close(got, [*wanted, output][: len(got)])
