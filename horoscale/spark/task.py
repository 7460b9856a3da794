"""The function of Spark's tasks: an agent, through which the launcher reaches the executor."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable, Iterator
from typing import Any

from horoscale.engines.agents.agent import Invitation, Seat, serve


def agent(invitation: Invitation, index: int, rows: Iterable[Any]) -> Iterator[Any]:
    """Run the agent of this task until the job is over."""
    from pyspark import TaskContext

    del rows
    context = TaskContext.get()
    resources = context.resources() if context is not None else {}
    devices = tuple(resources["gpu"].addresses) if "gpu" in resources else ()
    serve(invitation, Seat(_executor(), index, devices=devices))
    return iter(())


def executor_process() -> int:
    """Return the process ID of the executor of this task: its closest ancestor that runs Java."""
    process = os.getppid()
    with contextlib.suppress(OSError, ValueError):
        while process > 1 and _name_and_parent(process)[0] != "java":
            process = _name_and_parent(process)[1]
    return process if process > 1 else os.getppid()


def _executor() -> str:
    """Return the executor's name as the launcher's host: the machine's and its process ID."""
    return f"{socket.gethostname()}-{executor_process()}"


def _name_and_parent(process: int) -> tuple[str, int]:
    with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
        head, _, tail = file.read().rpartition(")")
    return head.partition("(")[2], int(tail.split()[1])
