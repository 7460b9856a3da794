"""Batch: groups of gradients whose reductions start together."""

from __future__ import annotations

import threading
from typing import Protocol

import torch
from torch.autograd import Variable

from horoscale.common import job
from horoscale.torch.compiling import outside_graph


class Startable(Protocol):
    """The batch's interface to a group of gradients."""

    def start(self, wake: bool = False) -> None:
        """Start the reduction."""


class Batch:
    """A batch of gradient groups in shared memory that are ready and start together.

    This is cheaper than starting each group separately: the data that a start needs stays in the
    CPU's caches, and the engine's thread, which may share a core with autograd, wakes once.
    """

    FIRST_BYTES = 1 << 20  # small, so that the engine starts early
    BYTES = 8 << 20  # frequent starts disturb autograd if all cores of the host are busy

    def __init__(self) -> None:
        """Create an empty batch."""
        self._groups: dict[Startable, None] = {}
        self._nbytes = 0
        self._enough = self.FIRST_BYTES
        self._pass = -1  # autograd's id of the backward pass
        self._lock = threading.RLock()

    def add(self, group: Startable, nbytes: int) -> None:
        """Add a group. Start the batch if it is large enough or when this backward pass ends."""
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
        """Start the waiting groups, including those that a failed backward pass left behind."""
        with self._lock:
            groups = list(self._groups)
            self.clear()  # if a start fails, the step() of that optimizer retries the others
            for group in groups:
                group.start(wake=group is groups[-1])

    def clear(self) -> None:
        """Remove the waiting groups."""
        self._groups.clear()
        self._nbytes = 0

    @outside_graph
    def _end_of_pass(self) -> None:
        with torch.no_grad():
            self.start()


batch = Batch()
job.at_end(batch.clear)
