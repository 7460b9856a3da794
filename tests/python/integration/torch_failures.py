"""Ranks that train with PyTorch's libraries; one of them dies or contradicts the others.

Imports PyTorch once and forks the ranks of each case, case by case. Prints a JSON object for each:
how its ranks ended, and their errors. Argument: a folder.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import horoscale.torch.distributed  # noqa: F401

SIZE, VICTIM = 3, 1  # in the middle of the pipeline
PHASES = ("forward", "backward", "step", "mismatch")
STEPS, LAST = 100, 2
PATIENCE_S = 40
FOLDER = Path(sys.argv[1])


def die(*_: object) -> None:
    """Record the time, and kill this process."""
    (FOLDER / "died").write_text(str(time.monotonic()))
    os.kill(os.getpid(), signal.SIGKILL)


def arm(phase: str, layer: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Make this process die in a phase of the next step."""
    if phase == "forward":
        layer.register_forward_pre_hook(die)
    elif phase == "backward":
        layer.register_full_backward_hook(die)
    elif phase == "step":
        optimizer.register_step_pre_hook(die)


def width(phase: str) -> int:
    """The size of a layer, on which ranks may disagree."""
    return 48 if phase == "mismatch" and dist.get_rank() == VICTIM else 32


def train(phase: str, parameters: Any, layer: nn.Module, step_of: Callable[[], None]) -> None:
    optimizer = torch.optim.SGD(parameters, lr=0.001)
    for step in range(STEPS):
        if step == LAST and dist.get_rank() == VICTIM:
            arm(phase, layer, optimizer)
        optimizer.zero_grad()
        step_of()
        optimizer.step()


def layers_of(phase: str) -> list[nn.Module]:
    wide = width(phase)
    return [nn.Linear(32, 32), nn.Linear(32, wide), nn.Linear(wide, 32), nn.BatchNorm1d(32)]


def ddp(phase: str) -> None:
    """Each layer is its own bucket; buffers are broadcast before each forward pass."""
    layers = layers_of(phase)
    module = DistributedDataParallel(
        nn.Sequential(*layers), bucket_cap_mb=0.001, init_sync=phase != "mismatch"
    )
    given = torch.ones(4, 32)
    train(phase, module.parameters(), layers[1], lambda: module(given).sum().backward())


def fsdp2(phase: str) -> None:
    layers = layers_of(phase)
    mesh = init_device_mesh("cpu", (SIZE,))
    module = nn.Sequential(*layers)
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    given = torch.ones(4, 32)
    train(phase, module.parameters(), layers[1], lambda: module(given).sum().backward())


def pipeline(phase: str) -> None:
    """A stage on each rank. In the mismatch the second expects more than the first sends."""
    rank = dist.get_rank()
    layer = nn.Linear(32, 32)
    shapes = {}  # the stages exchange them
    if phase == "mismatch":
        rows = 2 if rank == VICTIM else 1
        example = torch.ones(rows, 32, requires_grad=True)
        shapes = {"input_args": example, "output_args": example}
    stage = pipelining.PipelineStage(layer, rank, SIZE, torch.device("cpu"), **shapes)
    schedule = pipelining.Schedule1F1B(
        stage, n_microbatches=4, loss_fn=lambda output, target: (output - target).square().sum()
    )

    def step_of() -> None:
        given = (torch.ones(4, 32),) if rank == 0 else ()
        last = {"target": torch.zeros(4, 32)} if rank == SIZE - 1 else {}
        schedule.step(*given, **last)

    train(phase, layer.parameters(), layer, step_of)


def as_rank(library: Callable[[str], None], phase: str, rank: int) -> None:
    """Train until an error is raised, and record it."""
    signal.alarm(PATIENCE_S)  # ends ranks that hang
    case = f"{library.__name__} {phase}"
    dist.init_process_group(
        "horoscale", init_method=f"file://{FOLDER}/{case}", rank=rank, world_size=SIZE
    )
    try:
        library(phase)
        raised: Any = None
    except RuntimeError as error:
        raised = {"type": type(error).__name__, "text": str(error), "at": time.monotonic()}
        raised["ranks"] = list(getattr(error, "ranks", ()))
    dist.destroy_process_group()
    (FOLDER / f"{case} {rank}").write_text(json.dumps(raised))


def run(library: Callable[[str], None], phase: str) -> None:
    """Run a case, and print its result."""
    (FOLDER / "died").write_text(str(time.monotonic()))
    sys.stdout.flush()
    pids = []
    for rank in range(SIZE):
        pid = os.fork()
        if pid == 0:
            as_rank(library, phase, rank)
            sys.exit(0)
        pids.append(pid)
    ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    raised: list[Any] = [None] * SIZE
    died = float((FOLDER / "died").read_text())
    for rank in range(SIZE):
        said = FOLDER / f"{library.__name__} {phase} {rank}"
        if said.exists() and (found := json.loads(said.read_text())):
            found["seconds"] = round(found.pop("at") - died, 3)
            raised[rank] = found
    case = [library.__name__, phase]
    print(json.dumps({"case": case, "ended": ended, "raised": raised}), flush=True)


def main() -> None:
    torch.set_num_threads(1)
    importlib.import_module("torch._dynamo")  # once, before any optimizer is created
    for library in (ddp, fsdp2, pipeline):
        for phase in PHASES:
            run(library, phase)


if __name__ == "__main__":
    main()
