"""Shared by the ranks of benchmarks/elastic.py: the model, its steps, and recording of events.

Each process records events, with the machine's monotonic clock, in FOLDER/log.PID. It ends when the
file FOLDER/finish exists.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch


class Training:
    """A model of two square layers and the record of its steps, from the command line.

    FOLDER [--megabytes 36]
    """

    def __init__(self) -> None:
        """Create the model, the same on all ranks."""
        parser = argparse.ArgumentParser()
        parser.add_argument("folder", type=Path)
        parser.add_argument("--megabytes", type=float, default=36)
        arguments = parser.parse_args()
        self._folder: Path = arguments.folder
        self._log = (self._folder / f"log.{os.getpid()}").open("a", buffering=1)
        torch.set_num_threads(1)
        torch.manual_seed(1)
        width = int((arguments.megabytes * 1e6 / 4 / 2) ** 0.5)
        layers = (torch.nn.Linear(width, width, bias=False) for _ in range(2))
        self.model = torch.nn.Sequential(*layers)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-4, momentum=0.9)
        self._inputs = torch.randn(2, width)

    def note(self, event: str, view: int, **what: object) -> None:
        """Record an event in a view."""
        line = {"time": time.monotonic(), "event": event, "pid": os.getpid(), **what, "view": view}
        self._log.write(json.dumps(line) + "\n")

    def steps(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        after_step: Callable[[int], None],
        any_of: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        """Train until any rank sees that the benchmark has finished.

        `model` and `optimizer` are a library's wrappers of this object's. `after_step` receives the
        number of steps, and `any_of` returns the maximum over the ranks.
        """
        made, finished = 0, torch.zeros(1)
        while finished.item() == 0:
            optimizer.zero_grad()
            model(self._inputs).square().mean().backward()
            optimizer.step()
            made += 1
            if made > 5:
                time.sleep(
                    0.02
                )  # as if a device computed, so that replacements can import meanwhile
            after_step(made)
            if made % 10 == 0:
                finished[0] = (self._folder / "finish").exists()
                finished = any_of(finished)
