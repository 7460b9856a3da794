"""Batch: groups of gradients whose reductions start together."""

from __future__ import annotations

import threading
from typing import Protocol

import torch
from torch.autograd import Variable

from horoscale.common import job
from horoscale.torch.compiling import outside_graph


class Startable(Protocol):
    """A group of gradients, as the batch knows it."""

    def start(self, wake: bool = False) -> None:
        """Start the reduction."""


class Batch:
    """Groups in shared memory whose gradients are there, which start together.

    That costs less than each on its own: the caches have not forgotten in between what a start
    needs, and the engine, whose thread may share the core with autograd, is woken once.
    """

    FIRST_BYTES = 1 << 20  # so that the engine has something to do early
    BYTES = 8 << 20  # on one host, whose cores may all be busy: starting often disturbs autograd

    def __init__(self) -> None:
        """Begin empty."""
        self._groups: dict[Startable, None] = {}
        self._nbytes = 0
        self._enough = self.FIRST_BYTES
        self._pass = -1  # autograd's number of the backward pass
        self._lock = threading.RLock()

    def add(self, group: Startable, nbytes: int) -> None:
        """Let a group wait for others, at most to the end of this backward pass, or start them."""
        with self._lock:
            this_pass = torch._C._current_graph_task_id()
            if this_pass != self._pass:
                self._pass = this_pass
                self._enough = self.FIRST_BYTES
                Variable._execution_engine.queue_callback(self._end_of_pass)
            self._groups[group] = None
            self._nbytes += nbytes
            if self._nbytes >= self._enough:
                self.start()
                here = job.current_runtime().topology
                self._enough = self.BYTES if here.size == here.local_size else self.FIRST_BYTES

    def start(self) -> None:
        """Start the groups that wait, also those that a failed backward pass has left behind."""
        with self._lock:
            groups = list(self._groups)
            self.clear()  # where one can't start, its optimizer's step() tries the others
            for group in groups:
                group.start(wake=group is groups[-1])

    def clear(self) -> None:
        """Forget the groups that wait."""
        self._groups.clear()
        self._nbytes = 0

    @outside_graph
    def _end_of_pass(self) -> None:
        with torch.no_grad():
            self.start()


batch = Batch()
job.at_end(batch.clear)
