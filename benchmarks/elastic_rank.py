"""A rank that trains in an elastic job and notes when what happens, for benchmarks/elastic.py.

    elastic_rank.py FOLDER [--megabytes 36]

Each process notes events with the machine's monotonic clock in FOLDER/log.PID: the phases of a
recovery by name, and the first steps of each view. It ends when there is a file FOLDER/finish.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch

import horoscale.torch as hvd
from horoscale.elastic import membership as memberships

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--megabytes", type=float, default=36)
arguments = parser.parse_args()

log = (arguments.folder / f"log.{os.getpid()}").open("a", buffering=1)


def note(event: str, **what: object) -> None:
    view = memberships.membership().view
    line = {"time": time.monotonic(), "event": event, "pid": os.getpid(), **what}
    line["view"] = 0 if view is None else view.number
    log.write(json.dumps(line) + "\n")


class NotedState(hvd.elastic.TorchState):
    """Notes when it has gone back to the commit, and when it has been sent."""

    def _go_back(self, number: int) -> None:
        super()._go_back(number)
        note("restored")

    def sync(self) -> None:
        super().sync()
        note("synchronized")


def note_membership() -> None:
    """Note when this rank has left, has been given a view, and has met the others."""
    member = memberships.membership()
    leave, next_view, enter = memberships._leave, member.next_view, member.enter

    def noted_leave(error: Exception | None) -> Exception | None:
        note("met", failed=error is not None)
        error = leave(error)
        note("left")
        return error

    def noted_next_view(*given: Any, **named: Any) -> Any:
        view = next_view(*given, **named)
        note("given")
        return view

    def noted_enter(view: Any) -> None:
        enter(view)
        note("entered")

    memberships._leave = noted_leave
    member.next_view, member.enter = noted_next_view, noted_enter  # type: ignore[method-assign]


torch.set_num_threads(1)
hvd.init()
torch.manual_seed(1)
width = int((arguments.megabytes * 1e6 / 4 / 2) ** 0.5)  # two square layers
model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(2)))
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9),
    named_parameters=model.named_parameters(),
)
inputs = torch.randn(2, width)
state = NotedState(model, optimizer, step=0)
note_membership()


@hvd.elastic.run
def train(state: NotedState) -> None:
    made, finished = 0, torch.zeros(1)
    while finished.item() == 0:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        made += 1
        if made > 5:
            time.sleep(0.02)  # as if a device computed: replacements can import meanwhile
        if made in (1, 5):
            note("step", made=made, size=hvd.size(), rank=hvd.rank(), step=state.step)
        state.step += 1
        state.commit()
        if made % 10 == 0:
            finished[0] = (arguments.folder / "finish").exists()
            finished = hvd.allreduce(finished, op=hvd.Max)


train(state)
