"""A rank that trains under torchrun and records its first steps, for benchmarks/elastic.py.

    elastic_torchrun_rank.py FOLDER [--megabytes 36]

It uses the model, optimizer and recording of elastic_rank.py. DistributedDataParallel over Gloo
averages the gradients. State that a restart loses is not loaded again, which would take longer.
"""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from elastic_steps import Training

training = Training()
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
model = torch.nn.parallel.DistributedDataParallel(training.model)
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"]) + 1


def note_step(made: int) -> None:
    if made in (1, 5):
        size, rank = dist.get_world_size(), dist.get_rank()
        training.note("step", attempt, made=made, size=size, rank=rank)


def any_of(finished: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(finished, dist.ReduceOp.MAX)
    return finished


training.steps(model, training.optimizer, note_step, any_of)
dist.destroy_process_group()
