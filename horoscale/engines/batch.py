"""The interface of batch systems: the machines of a job, and the tasks started on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class BatchTask:
    """A process that a batch system has started as one of several ranks."""

    rank: int
    size: int
    node: str  # its name; ranks of one node are on one host
    job: str  # unique to these ranks on every node, for the name of a file
    port: int  # where rank 0 may serve; the same on all ranks
    own_address: Callable[[], str]  # address of this node, for the others
    first_address: Callable[[], str]  # address of rank 0's node


@dataclass(frozen=True)
class Allocation:
    """The machines of a batch job, and how to start a program on each."""

    system: str  # its name
    slots: Mapping[str, int]  # by name of the node, in the job's order
    own: str | None  # the node of this process; None: it is on none of them
    shell: tuple[str, ...] | None  # CMD of `CMD node program arguments`; None: ssh
    more: str  # how the user can get more slots


class BatchError(ValueError):
    """A batch system's variables are invalid. The message is for the user."""


def number(environ: Mapping[str, str], name: str) -> int:
    """Return a variable's integer value; raise BatchError, which names it, if it is invalid."""
    text = environ.get(name, "")
    if not (text.isascii() and text.isdigit()):
        raise BatchError(f"{name}={text!r} does not parse: expected a number")
    return int(text)
