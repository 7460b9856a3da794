"""What runs in Spark's tasks: an agent, through which the launcher reaches the executor."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable, Iterator
from typing import Any

from horoscale.engines.agents.agent import Invitation, Seat, serve


def agent(invitation: Invitation, index: int, rows: Iterable[Any]) -> Iterator[Any]:
    """Be the agent of this task until the job is over."""
    from pyspark import TaskContext

    del rows
    context = TaskContext.get()
    resources = context.resources() if context is not None else {}
    devices = tuple(resources["gpu"].addresses) if "gpu" in resources else ()
    serve(invitation, Seat(_executor(), index, devices=devices))
    return iter(())


def _executor() -> str:
    """A name of the executor, which is a host to the launcher: this machine's and its process."""
    process = os.getppid()
    with contextlib.suppress(OSError, ValueError):
        while process > 1 and _name_and_parent(process)[0] != "java":
            process = _name_and_parent(process)[1]
    if process <= 1:
        process = os.getppid()
    return f"{socket.gethostname()}-{process}"


def _name_and_parent(process: int) -> tuple[str, int]:
    with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
        head, _, tail = file.read().rpartition(")")
    return head.partition("(")[2], int(tail.split()[1])
