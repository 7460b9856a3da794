"""What batch systems tell: the machines that a job was given, and the tasks started on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class BatchTask:
    """A process that a batch system has started as one of several ranks."""

    rank: int
    size: int
    node: str  # its name: ranks of one node are on one host
    job: str  # what no other ranks have, on no node: for the name of a file
    port: int  # where rank 0 may serve, alike on all ranks
    own_address: Callable[[], str]  # of this node, for the others
    first_address: Callable[[], str]  # of rank 0's node


@dataclass(frozen=True)
class Allocation:
    """The machines of a batch job, and how a program is started on each."""

    system: str  # its name
    slots: Mapping[str, int]  # by the name of the node, in the job's order
    own: str | None  # the node that this process is on; None: on none of them
    shell: tuple[str, ...] | None  # CMD of `CMD node program arguments`; None: ssh
    more: str  # how the user gets more slots


class BatchError(ValueError):
    """A batch system's variables that can't be; the message is for the user."""


def number(environ: Mapping[str, str], name: str) -> int:
    """Return a variable that is a number; raise BatchError naming it."""
    text = environ.get(name, "")
    if not (text.isascii() and text.isdigit()):
        raise BatchError(f"{name}={text!r} does not parse: expected a number")
    return int(text)
