"""Driver: executes Membership's decisions, and passes events to it.

It runs in a launcher's event loop, which calls it from one thread. It never blocks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Protocol

from horoscale.common.views import View
from horoscale.driver.events import (
    Action,
    CallOff,
    Discovered,
    Drained,
    Ended,
    Event,
    Finish,
    HostLost,
    Reported,
    Say,
    SendInterrupt,
    SendLeave,
    SendView,
    Start,
    Stop,
    Tick,
)
from horoscale.driver.membership import Membership, Part, Rules
from horoscale.driver.progress import Progress, findings

MAX_LINE_BYTES = 64 << 10  # of a line from a rank
MAX_STATUS_BYTES = 1 << 20  # of an answer to a rank, which reads no longer lines
_MAX_COMMITS = 16
_MAX_CAUSE = 2000


class Launcher(Protocol):
    """The driver's interface to a launcher. No method may block for long, or raise."""

    def start(self, order: Start) -> None:
        """Start a process. Failures are reported to Driver.ended()."""

    def stop(self, process: int, grace_s: float) -> None:
        """End a process by SIGTERM, and SIGKILL after the grace; without grace, by SIGKILL."""

    def send(self, process: int, line: bytes) -> None:
        """Send a line to a started process. Does nothing if it has ended."""

    def call_off(self, view: int, why: str) -> None:
        """Make the ranks that are starting in a view fail (see store_keys())."""

    def say(self, text: str) -> None:
        """Print a message to the user."""

    def finish(self, status: int, why: str) -> None:
        """Handle the end of the job: end the remaining processes."""


class MessageError(ValueError):
    """A process sent an invalid message."""


def first_line(order: Start) -> bytes:
    """Return the first message to a process, which is sent before it sends anything."""
    if isinstance(order.role, View):
        return _line({"kind": "view", "view": asdict(order.role)})
    return _line({"kind": "hello", "provisional": asdict(order.role)})


def store_keys(view: int) -> tuple[str, str]:
    """Return the keys of the job's store that cancel the start of a view.

    The first is for ranks that wait for others to arrive, the second for those that have connected.
    The value is the reason. A rank may already have set the second key.
    """
    return f"view-{view}-failed", f"view-{view}-0/failed"


class Driver:
    """Drives an elastic job through a launcher."""

    def __init__(self, rules: Rules, launcher: Launcher) -> None:
        self._membership = Membership(rules)
        self._launcher = launcher
        self._progress: dict[int, Progress] = {}
        self.revision = 0  # increases when the result of parts() may change

    @property
    def finished(self) -> Finish | None:
        """The end of the job; None if it has not ended."""
        return self._membership.finished

    def discovered(self, hosts: Sequence[tuple[str, int]], now: float) -> None:
        """Handle the current hosts with their slots, oldest first."""
        self._handle(Discovered(tuple(hosts)), now)

    def ended(self, process: int, status: int, why: str, now: float) -> None:
        """Handle the end of a process; `status` is as in subprocess."""
        self._progress.pop(process, None)
        self._handle(Ended(process, status, why), now)

    def host_lost(self, host: str, why: str, now: float) -> None:
        """Handle the loss of the connection to a host."""
        self._handle(HostLost(host, why), now)

    def drain(self, host: str, now: float) -> None:
        """Leave a host at the next commit, and do not use it again."""
        self._handle(Drained(host), now)

    def check_deadlines(self, now: float) -> None:
        """Perform due actions; see `deadline`."""
        self._handle(Tick(), now)

    def deadline(self, now: float) -> float | None:
        """Return the next time to call check_deadlines()."""
        return self._membership.deadline(now)

    def said(self, process: int, line: bytes, now: float) -> None:
        """Handle a line from a process. Raises MessageError if it is invalid."""
        message = _parse(line)
        if message["kind"] == "progress":
            if process in self._membership.processes:
                self._progress.setdefault(process, Progress(now)).take(message["values"], now)
            return
        if message["kind"] == "status":
            self._launcher.send(process, _answer(self.status(now)))
            return
        report = Reported(process, message["view"], tuple(message["commits"]), message["cause"])
        self._handle(report, now)

    def rank_of(self, process: int) -> int | None:
        """Return the rank of a process in the current view, or None."""
        known = self._membership.processes.get(process)
        return None if known is None else known.rank

    def parts(self) -> tuple[int, int, list[tuple[int, int | None, str]]]:
        """Return the view, the number of changes, and each process's rank and part."""
        membership = self._membership
        parts = [(one.number, one.rank, one.part.value) for one in membership.processes.values()]
        return membership.view, membership.resets, parts

    def is_leaving(self, process: int) -> bool:
        """Return whether a process was told to end, or has ended."""
        known = self._membership.processes.get(process)
        return known is None or known.part in (Part.LEAVING, Part.STOPPING)

    def status(self, now: float) -> dict[str, Any]:
        """Return the status of the job, as JSON values."""
        membership = self._membership
        unknown = Progress(now)
        ranks = {
            one.rank: self._progress[one.number]
            for one in membership.processes.values()
            if one.rank is not None and one.number in self._progress
        }
        return {
            "view": membership.view,
            "size": membership.size,
            "resets": membership.resets,
            "processes": [
                {
                    "process": one.number,
                    "host": one.host,
                    "slot": one.slot,
                    "part": one.part.value,
                    "rank": one.rank,
                    **self._progress.get(one.number, unknown).describe(now),
                }
                for one in membership.processes.values()
            ],
            "findings": findings(ranks, now),
        }

    def _handle(self, event: Event, now: float) -> None:
        self.revision += not isinstance(event, Tick)
        for action in self._membership.handle(event, now):
            self.revision += 1
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case Start():
                self._launcher.start(action)
            case Stop():
                self._launcher.stop(action.process, action.grace_s)
            case SendView():
                view = {"kind": "view", "view": asdict(action.view)}
                self._launcher.send(action.process, _line(view))
            case SendInterrupt():
                self._launcher.send(action.process, _line({"kind": "interrupt"}))
            case SendLeave():
                leave = {"kind": "leave", "status": action.status, "why": action.why}
                self._launcher.send(action.process, _line(leave))
            case CallOff():
                self._launcher.call_off(action.view, action.why)
            case Say():
                self._launcher.say(action.text)
            case Finish():
                self._launcher.finish(action.status, action.why)


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def _answer(status: dict[str, Any]) -> bytes:
    """Return the line with the status for a rank, without lists that would make it too long."""
    line = _line({"kind": "status", "status": status})
    for name in ("processes", "findings"):
        if len(line) > MAX_STATUS_BYTES:
            status = {**status, name: []}
            line = _line({"kind": "status", "status": status})
    return line


def _parse(line: bytes) -> dict[str, Any]:
    """Parse and validate a message of a process."""
    try:
        if len(line) > MAX_LINE_BYTES:
            raise MessageError(f"a line of {len(line)} bytes")
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"a rank's message can't be read: {error}") from None
    if not isinstance(message, dict) or not _is_known(message):
        raise MessageError(f"a rank can't say {str(message)[:80]!r}")
    return message


def _is_known(message: dict[str, Any]) -> bool:
    if message.get("kind") == "progress":
        return message.keys() == {"kind", "values"} and isinstance(message["values"], dict)
    if message.get("kind") == "status":
        return message.keys() == {"kind"}
    if message.get("kind") != "report" or message.keys() != {"kind", "view", "commits", "cause"}:
        return False
    commits, cause = message["commits"], message["cause"]
    return (
        _is_number(message["view"])
        and isinstance(commits, list)
        and len(commits) <= _MAX_COMMITS
        and all(map(_is_number, commits))
        and (cause is None or (isinstance(cause, str) and len(cause) <= _MAX_CAUSE))
    )


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63
