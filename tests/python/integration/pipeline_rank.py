"""One rank of a pipeline in which a rank is killed in the middle of a step.

    python pipeline_rank.py SCHEDULE VICTIM forward|backward

It prints the time of its death; the others print a JSON object: the error and time of the step, and
the result of the next one.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
from typing import Any

import torch
from torch import nn

import horoscale.torch as hvd
import horoscale.torch.parallel as par

SECONDS_TO_LIVE = 120
WIDTH = 4096  # larger than eager messages: the survivors read each other's memory


class Fatal(torch.autograd.Function):
    """Kills the process after this many microbatches."""

    left = 1 << 30
    phase = ""

    @staticmethod
    def maybe(phase: str) -> None:
        if phase == Fatal.phase:
            Fatal.left -= 1
            if Fatal.left == 0:
                print(time.monotonic(), flush=True)
                os.kill(os.getpid(), signal.SIGKILL)

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        Fatal.maybe("forward")
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        Fatal.maybe("backward")
        return gradient


class Stage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Fatal.apply(x * self.scale)


def outcome(pipe: par.Pipeline, x: torch.Tensor) -> list[Any]:
    """The error that a step raises."""
    try:
        pipe.step(x, x)
    except hvd.RankFailedError as error:
        return ["RankFailedError", list(error.ranks)]
    except par.PipelineError as error:
        return ["PipelineError", str(error)]
    return ["nothing"]


def main() -> None:
    faulthandler.dump_traceback_later(SECONDS_TO_LIVE, exit=True)
    schedule, victim, phase = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    hvd.init()
    torch.set_num_threads(1)
    ranks = tuple(range(hvd.size()))
    axis = par.Axis("pp", ranks, hvd.rank(), hvd.global_process_set)
    stages = [Stage() for _ in ranks]
    pipe = par.Pipeline(
        stages, axis, loss=nn.functional.mse_loss, schedule=schedule, microbatches=6
    )
    x = torch.ones(12, WIDTH)
    pipe.step(x, x)
    if hvd.rank() == victim:
        Fatal.phase, Fatal.left = phase, 4
    first = ["nothing"]
    while first == ["nothing"]:  # a rank that has done its part fails in the next step
        first = outcome(pipe, x)
    failed_at = time.monotonic()
    told = {"first": first, "failed_at": failed_at, "later": outcome(pipe, x)}
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
