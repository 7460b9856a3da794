"""A rank that trains below torchrun and notes its first steps, for benchmarks/elastic.py.

    elastic_torchrun_rank.py FOLDER [--megabytes 36]

The model, the optimizer and the notes are those of elastic_rank.py; DistributedDataParallel over
Gloo averages. What a restart loses is not loaded again, which would take longer.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--megabytes", type=float, default=36)
arguments = parser.parse_args()

torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
width = int((arguments.megabytes * 1e6 / 4 / 2) ** 0.5)
layers = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(2)))
model = torch.nn.parallel.DistributedDataParallel(layers)
optimizer = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9)
inputs = torch.randn(2, width)
made, finished = 0, torch.zeros(1)
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"]) + 1
with (arguments.folder / f"log.{os.getpid()}").open("a", buffering=1) as log:
    while finished.item() == 0:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        made += 1
        if made > 5:
            time.sleep(0.02)
        if made in (1, 5):
            line = {"time": time.monotonic(), "event": "step", "pid": os.getpid(), "made": made}
            line |= {"view": attempt, "rank": dist.get_rank(), "size": dist.get_world_size()}
            log.write(json.dumps(line) + "\n")
        if made % 10 == 0:
            finished[0] = (arguments.folder / "finish").exists()
            dist.all_reduce(finished, dist.ReduceOp.MAX)
dist.destroy_process_group()
