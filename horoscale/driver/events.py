"""The events of an elastic job, and the actions of its driver."""

from __future__ import annotations

from dataclasses import dataclass

from horoscale.common.views import Provisional, View

# ------------------------------------------------------------------ events


@dataclass(frozen=True)
class Discovered:
    """The current hosts, and the number of processes for each."""

    hosts: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Reported:
    """A process waits for the next view."""

    process: int
    view: int  # number of its last view; 0: none
    commits: tuple[int, ...]  # commits that it holds
    cause: str | None  # what failed


@dataclass(frozen=True)
class Ended:
    """A process has ended, or could not be started."""

    process: int
    status: int  # as subprocess: -N for signal N
    why: str


@dataclass(frozen=True)
class HostLost:
    """The connection to a host is lost; nothing runs there."""

    host: str
    why: str


@dataclass(frozen=True)
class Drained:
    """A host must be left at the next commit, and not used again."""

    host: str


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = Discovered | Reported | Ended | HostLost | Drained | Tick

# ------------------------------------------------------------------ actions


@dataclass(frozen=True)
class Start:
    """Start a process, as a rank of a view or as a standby."""

    process: int
    host: str
    slot: int
    role: View | Provisional


@dataclass(frozen=True)
class Stop:
    """End a process: with SIGTERM first if it has a grace."""

    process: int
    grace_s: float
    why: str


@dataclass(frozen=True)
class SendView:
    """Send a process the view that it waits for."""

    process: int
    view: View


@dataclass(frozen=True)
class SendInterrupt:
    """Make a process request another view at its next commit."""

    process: int


@dataclass(frozen=True)
class SendLeave:
    """Tell a process that it no longer belongs to the job."""

    process: int
    status: int  # the exit status to use
    why: str


@dataclass(frozen=True)
class CallOff:
    """Cancel the start of a view, which can't be completed, for all of its ranks."""

    view: int
    why: str


@dataclass(frozen=True)
class Say:
    """Print a message to the user."""

    text: str


@dataclass(frozen=True)
class Finish:
    """End the job and stop the remaining processes."""

    status: int
    why: str


Action = Start | Stop | SendView | SendInterrupt | SendLeave | CallOff | Say | Finish
