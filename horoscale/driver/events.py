"""What can happen in an elastic job, and what its driver can do about it."""

from __future__ import annotations

from dataclasses import dataclass

from horoscale.common.views import Provisional, View

# ------------------------------------------------------------------ events


@dataclass(frozen=True)
class Discovered:
    """The hosts that there are now, and how many processes each takes."""

    hosts: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Reported:
    """A process waits for the next view."""

    process: int
    view: int  # the number of the last one that it had; 0: none
    commits: tuple[int, ...]  # that it holds
    cause: str | None  # what failed


@dataclass(frozen=True)
class Ended:
    """A process has ended, or could not be started."""

    process: int
    status: int  # as subprocess: -N for signal N
    why: str


@dataclass(frozen=True)
class HostLost:
    """There is no way to a host any longer; nothing runs there."""

    host: str
    why: str


@dataclass(frozen=True)
class Drained:
    """A host is to be left at the next commit, and not used again."""

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
    """Give a process the view that it waits for."""

    process: int
    view: View


@dataclass(frozen=True)
class SendInterrupt:
    """Have a process ask for another view at its next commit."""

    process: int


@dataclass(frozen=True)
class SendLeave:
    """Tell a process that it has no place in the job any longer."""

    process: int
    status: int  # what it should exit with
    why: str


@dataclass(frozen=True)
class CallOff:
    """Have the start of a view fail for all who are at it: it can't be complete any longer."""

    view: int
    why: str


@dataclass(frozen=True)
class Say:
    """Tell the user."""

    text: str


@dataclass(frozen=True)
class Finish:
    """End the job; what is left of it is to be stopped."""

    status: int
    why: str


Action = Start | Stop | SendView | SendInterrupt | SendLeave | CallOff | Say | Finish
