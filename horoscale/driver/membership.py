"""Membership: determines an elastic job's processes, and the ranks of its next view.

It is pure, maps events and times to actions, and makes all decisions. A process starts as a rank of
the first view or, later, as a standby. A standby that has reported is ready. The ranks of a view
report when something has failed, or at the commit after an interruption. When all of them have
reported, ended or been evicted, survivors and ready standbys form the next view.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from horoscale.common.views import Provisional, View
from horoscale.driver.agreement import Candidate, compose
from horoscale.driver.bans import BanPolicy, Bans
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

SETTLE_S = 0.05  # wait for further deaths after one
REPLACE_AFTER_S = 1.0  # after a failure and the next view, whose survivors get the cores first
JOIN_WAIT_S = 1.0  # ready standbys wait for others, to join in one view
MAX_FRUITLESS = 20  # consecutive views that failed without a death and without a commit


@dataclass(frozen=True)
class Rules:
    """The user's rules for the job."""

    np: int  # ranks of the first view
    min_np: int
    max_np: int
    elastic_timeout_s: float = 600.0  # maximum time with fewer than min_np ranks
    evict_s: float = 30.0  # maximum time for a rank to report after a failure
    reset_limit: int | None = None  # maximum number of views after the first
    leave_s: float = 30.0  # maximum time for a process to end after it was told to leave
    grace_s: float = 10.0  # between SIGTERM and SIGKILL
    bans: BanPolicy = field(default_factory=BanPolicy)

    def __post_init__(self) -> None:
        """Raise ValueError if the numbers contradict each other."""
        if not 1 <= self.min_np <= self.np <= self.max_np:
            raise ValueError(
                f"min_np ({self.min_np}), np ({self.np}) and max_np ({self.max_np}) are not in "
                "ascending order"
            )


class Part(enum.Enum):
    """The role of a process in the job."""

    STANDBY = "starting"
    READY = "ready"
    MEMBER = "member"
    REPORTED = "waiting"  # a member that waits for the next view
    LEAVING = "leaving"
    STOPPING = "stopping"


@dataclass
class Process:
    """A process that has not ended."""

    number: int
    host: str
    slot: int
    part: Part
    rank: int | None = None  # in the view
    commits: tuple[int, ...] = ()
    stop_at: float | None = None  # deadline after it was told to leave
    ready_at: float = 0.0


@dataclass
class _Change:
    """The reasons for another view, and the deadlines before it."""

    failed: bool
    deaths: bool
    settle_until: float
    evict_at: float


_MEMBERS = (Part.MEMBER, Part.REPORTED)
_GOING = (Part.LEAVING, Part.STOPPING)


class Membership:
    """The state of a job. Only `handle` changes it."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.view = 0  # number of the current view
        self.size = 0
        self.resets = 0
        self.processes: dict[int, Process] = {}
        self.finished: Finish | None = None
        self._hosts: dict[str, int] = {}
        self._drained: set[str] = set()
        self._bans = Bans(rules.bans)
        self._next_process = 1
        self._change: _Change | None = None
        self._replace_at = 0.0  # earliest time to start a standby
        self._interrupted = False
        self._short_since: float | None = None
        self._short_is_told = False
        self._discovered = False
        self._ending = False  # a rank has finished its work
        self._failures_at_end: list[str] = []
        self._fruitless = 0
        self._best_commit = 0
        self._now = 0.0
        self._actions: list[Action] = []
        self._handlers: dict[type[Any], Callable[[Any, float], None]] = {
            Discovered: self._on_discovered,
            Reported: self._on_reported,
            Ended: self._on_ended,
            HostLost: self._on_host_lost,
            Drained: self._on_drained,
            Tick: lambda event, now: None,
        }

    def handle(self, event: Event, now: float) -> list[Action]:
        """Handle an event at a time, in seconds; return the actions to take."""
        self._actions = []
        self._now = now
        if self.finished is None:
            self._handlers[type(event)](event, now)
            self._decide(now)
        return self._actions

    def deadline(self, now: float) -> float | None:
        """Return when to call handle(Tick()) if there is no other event."""
        if self.finished is not None:
            return None
        times = [one.stop_at for one in self.processes.values() if one.stop_at is not None]
        if self._short_since is not None:
            times.append(self._short_since + self.rules.elastic_timeout_s)
        if self._change is not None and not self._ending:
            silent = any(one.part is Part.MEMBER for one in self.processes.values())
            times.append(self._change.evict_at if silent else self._change.settle_until)
        ready = [one.ready_at for one in self._of(Part.READY)]
        if ready and not self._interrupted:
            times.append(min(ready) + JOIN_WAIT_S)
        if (until := self._bans.deadline(now)) is not None:
            times.append(until)
        times.append(self._replace_at)
        return min((time for time in times if time > now), default=None)

    # ------------------------------------------------------------------ events

    def _on_discovered(self, event: Discovered, now: float) -> None:
        self._discovered = True
        found = dict(event.hosts)
        kept = {host: found[host] for host in self._hosts if host in found}
        self._hosts = {**kept, **{host: found[host] for host in found if host not in kept}}

    def _on_reported(self, event: Reported, now: float) -> None:
        process = self.processes.get(event.process)
        if process is None or event.view != (self.view if process.rank is not None else 0):
            return
        if process.part is Part.STANDBY:
            process.part, process.ready_at = Part.READY, now
        elif process.part is Part.MEMBER:
            process.part, process.commits = Part.REPORTED, event.commits
            self._begin_change(now, event.cause, death=False)

    def _on_ended(self, event: Ended, now: float) -> None:
        process = self.processes.pop(event.process, None)
        if process is None or process.part in _GOING:
            return
        if process.part in _MEMBERS and event.status == 0:
            self._ending = True
            return
        who = _name(process)
        if self._ending:
            if process.part in _MEMBERS:  # the end of a standby needs no new view
                self._failures_at_end.append(f"{who} {event.why}")
            return
        self._say(f"{who} {event.why}")
        if self._bans.failed(process.host, process.slot, now):
            self._say(f"{process.host} gets no new process for a while: too many have failed there")
        if process.part in _MEMBERS:
            self._begin_change(now, f"{who} {event.why}", death=True)

    def _on_host_lost(self, event: HostLost, now: float) -> None:
        self._bans.ban(event.host, now)
        for process in [one for one in self.processes.values() if one.host == event.host]:
            self._on_ended(Ended(process.number, -9, f"was lost: {event.why}"), now)

    def _on_drained(self, event: Drained, now: float) -> None:
        if event.host not in self._drained:
            self._drained.add(event.host)
            self._say(f"{event.host} is left at the next commit")

    def _begin_change(self, now: float, cause: str | None, *, death: bool) -> None:
        if self._change is None:
            self._change = _Change(False, False, now, now + self.rules.evict_s)
        if cause is None:
            return
        if not self._change.failed:
            self._actions.append(CallOff(self.view, cause))
        self._change.failed = True
        self._change.deaths |= death
        self._change.settle_until = now + SETTLE_S
        self._replace_at = now + REPLACE_AFTER_S

    # ------------------------------------------------------------------ decisions

    def _decide(self, now: float) -> None:
        self._stop_late(now)
        if self._ending:
            self._end_well(now)
            return
        if self.view == 0:
            self._start_first(now)
            return
        if not self._members():
            self._finish(1, "no rank is left that holds the job's state")
            return
        self._dismiss_standbys()
        if self._change is not None:
            self._settle(now)
        if self.finished is None:
            self._start_standbys(now)
        if self._change is None and self.finished is None:
            self._interrupt_if_wanted(now)

    def _stop_late(self, now: float) -> None:
        for process in self._of(Part.LEAVING):
            if process.stop_at is not None and now >= process.stop_at:
                self._stop(process, self.rules.grace_s, "did not leave when told to")

    def _end_well(self, now: float) -> None:
        """Handle the successful end of a rank: no more views; the others may end by themselves."""
        for process in self._of(Part.STANDBY):
            self._stop(process, self.rules.grace_s, "is not needed: the job has ended")
        for process in self._of(Part.READY, Part.REPORTED):
            self._leave(process, 0, "the job has ended: a rank has done its work", now)
        if not self.processes:
            why = "; ".join(self._failures_at_end)
            self._finish(1, f"when others were done: {why}") if why else self._finish(0, "")

    def _start_first(self, now: float) -> None:
        rules = self.rules
        places = self._free_slots(now)
        if self._is_short(len(places), rules.np, now):
            return
        candidates = []
        for host, slot in places[: rules.max_np]:
            process = self._add(host, slot, Part.MEMBER)
            candidates.append(Candidate(process.number, host, slot, None))
        self.view = 1
        views = compose(1, candidates, list(self._hosts), failed=False)
        self._enter(views)
        for number, view in views.items():
            process = self.processes[number]
            self._actions.append(Start(number, process.host, process.slot, view))

    def _is_short(self, have: int, needed: int, now: float) -> bool:
        """Return whether the job must wait for more processes; end it after the timeout."""
        if have >= needed:
            self._short_since, self._short_is_told = None, False
            return False
        if self._discovered and not self._short_is_told:
            self._short_is_told = True
            self._say(f"waits for {needed - have} more of at least {needed} ranks")
        if self._short_since is None:
            self._short_since = now
        elif now >= self._short_since + self.rules.elastic_timeout_s:
            self._finish(
                1,
                f"for {self.rules.elastic_timeout_s:g} s (--elastic-timeout) there were no more "
                f"than {have} of at least {needed} ranks",
            )
        return True

    def _dismiss_standbys(self) -> None:
        room = self.rules.max_np - sum(map(self._has_place, self._members()))
        for process in [*self._of(Part.READY), *self._of(Part.STANDBY)]:
            if self._has_place(process) and room > 0:
                room -= 1
            else:
                self._stop(process, self.rules.grace_s, "has no place any more")

    def _start_standbys(self, now: float) -> None:
        """Fill free slots, but after survivors that can continue alone have made their first step.

        A standby's imports would compete with them for the cores.
        """
        if self._at_limit():
            return
        can_go_on = len(self._chosen(self._members(), [])[0]) >= self.rules.min_np
        if now < self._replace_at and can_go_on:
            return
        staying = [
            one
            for one in self.processes.values()
            if one.part not in _GOING and self._has_place(one)
        ]
        rank = self.size
        for host, slot in self._free_slots(now)[: max(0, self.rules.max_np - len(staying))]:
            process = self._add(host, slot, Part.STANDBY)
            slots = self._hosts[host]
            rank = max(1, rank)
            role = Provisional(rank, rank + 1, slot, slots, 0, 1)
            self._actions.append(Start(process.number, host, slot, role))
            rank += 1

    def _interrupt_if_wanted(self, now: float) -> None:
        """Request another view at the members' next commit, if hosts have been added or removed."""
        if self._interrupted or self._at_limit():
            return
        ready, starting = self._of(Part.READY), self._of(Part.STANDBY)
        members = self._members()
        waited = ready and now >= min(one.ready_at for one in ready) + JOIN_WAIT_S
        joins = self._chosen(members, ready)[1] and (waited or not starting)
        if joins or len(self._chosen(members, [])[0]) < len(members):
            self._interrupted = True
            self._actions.extend(SendInterrupt(one.number) for one in members)

    def _chosen(
        self, members: list[Process], ready: list[Process]
    ) -> tuple[list[Process], list[Process]]:
        """Return the members that stay and the standbys that join, if the view changes now.

        Members without a place leave if min_np ranks remain. Otherwise they stay, but make room for
        newcomers: at most max_np are chosen, and at least one member, for the state.
        """
        placed = [one for one in members if self._has_place(one)]
        newcomers = ready[: max(0, self.rules.max_np - max(1, len(placed)))]
        count = len(placed) + len(newcomers)
        if placed and count >= self.rules.min_np:
            return placed, newcomers
        others = [one for one in members if not self._has_place(one)]
        return [*placed, *others[: self.rules.max_np - count]], newcomers

    def _settle(self, now: float) -> None:
        """Issue the next view if all conditions are met."""
        change = self._change
        assert change is not None
        silent = self._of(Part.MEMBER)
        if silent and now < change.evict_at:
            return
        for process in silent:
            change.failed = change.deaths = True
            self._say(
                f"{_name(process)} is killed: it has not asked for the next view within "
                f"{self.rules.evict_s:g} s (--evict-seconds)"
            )
            self._stop(process, 0.0, "did not report")
        if now < change.settle_until:
            return
        reported = self._of(Part.REPORTED)
        if not reported:
            self._finish(1, "no rank is left that holds the job's state")
            return
        if self._at_limit():
            self._finish(1, f"another view is needed after {self.resets} (--reset-limit)")
            return
        survivors, newcomers = self._chosen(reported, self._of(Part.READY))
        holders = [one for one in reported if one.commits]
        if holders and not any(one in survivors for one in holders):
            survivors = reported  # the only holders of the state stay
            newcomers = newcomers[: max(0, self.rules.max_np - len(survivors))]
        if self._is_short(len(survivors) + len(newcomers), self.rules.min_np, now):
            return
        self._issue([*survivors, *newcomers], now)

    def _issue(self, chosen: list[Process], now: float) -> None:
        change = self._change
        assert change is not None
        best = max((max(one.commits, default=0) for one in chosen), default=0)
        if not best and self._best_commit:  # only newcomers that had not received the state
            self._finish(1, f"no rank is left that holds commit {self._best_commit}, the last one")
            return
        fruitless = change.failed and not change.deaths and best <= self._best_commit
        self._fruitless = self._fruitless + 1 if fruitless else 0
        self._best_commit = max(best, self._best_commit)
        if self._fruitless >= MAX_FRUITLESS:
            self._finish(1, f"{MAX_FRUITLESS} views in a row failed without a commit")
            return
        candidates = [
            Candidate(one.number, one.host, one.slot, one.rank, one.commits) for one in chosen
        ]
        self.view += 1
        self.resets += 1
        if change.failed:
            self._replace_at = now + REPLACE_AFTER_S
        views = compose(self.view, candidates, list(self._hosts), failed=change.failed)
        for process in self._of(Part.REPORTED):
            if process.number not in views:
                self._leave(process, 0, f"{process.host} is not part of the job any more", now)
        self._enter(views)
        self._actions.extend(SendView(number, view) for number, view in views.items())
        self._change = None
        self._interrupted = False

    def _enter(self, views: dict[int, View]) -> None:
        self.size = len(views)
        for number, view in views.items():
            process = self.processes[number]
            process.part, process.rank, process.commits = Part.MEMBER, view.rank, ()

    # ------------------------------------------------------------------ roles

    def _of(self, *parts: Part) -> list[Process]:
        return [one for one in self.processes.values() if one.part in parts]

    def _members(self) -> list[Process]:
        return self._of(*_MEMBERS)

    def _has_place(self, process: Process) -> bool:
        """Return whether a process may stay on its host and slot."""
        if self._bans.policy.evicts and self._bans.banned(process.host, self._now):
            return False
        return process.host not in self._drained and process.slot < self._hosts.get(process.host, 0)

    def _free_slots(self, now: float) -> list[tuple[str, int]]:
        taken = {(one.host, one.slot) for one in self.processes.values()}
        return [
            (host, slot)
            for host, slots in self._hosts.items()
            if host not in self._drained and not self._bans.banned(host, now)
            for slot in range(slots)
            if (host, slot) not in taken
        ]

    def _at_limit(self) -> bool:
        return self.rules.reset_limit is not None and self.resets >= self.rules.reset_limit

    def _add(self, host: str, slot: int, part: Part) -> Process:
        process = Process(self._next_process, host, slot, part)
        self._next_process += 1
        self.processes[process.number] = process
        return process

    def _stop(self, process: Process, grace_s: float, why: str) -> None:
        process.part, process.stop_at = Part.STOPPING, None
        self._actions.append(Stop(process.number, grace_s, why))

    def _leave(self, process: Process, status: int, why: str, now: float) -> None:
        process.part, process.stop_at = Part.LEAVING, now + self.rules.leave_s
        self._actions.append(SendLeave(process.number, status, why))

    def _say(self, text: str) -> None:
        self._actions.append(Say(text))

    def _finish(self, status: int, why: str) -> None:
        self.finished = Finish(status, why)
        self._actions.append(self.finished)


def _name(process: Process) -> str:
    place = f"slot {process.slot} of {process.host}"
    return f"the standby in {place}" if process.rank is None else f"rank {process.rank} ({place})"
