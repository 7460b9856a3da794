"""JobWatch: the state of a watched job, returned as JSON values. It does no I/O.

The launcher updates it and the server reads it. It is thread-safe, and its clocks can be replaced.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from statistics import fmean, median
from typing import Any, NamedTuple

from horoscale.driver.progress import findings
from horoscale.runner.text import printable
from horoscale.watch.encodings import (
    EncodedOfRank,
    EncodedTotal,
    Encodings,
    by_encoding,
    chosen_tensors,
)
from horoscale.watch.events import Events, Listener
from horoscale.watch.process_sets import process_sets
from horoscale.watch.rank import WatchedRank
from horoscale.watch.recoveries import Recoveries
from horoscale.watch.values import numbered

HISTORY = 120  # points kept
_INTERVAL_S = 1.0
_KEPT_ENDED = 256  # ended processes kept of an elastic job
MOST_LINKS = 64
_MOST_FINDINGS = 50
_NOTES = ("mismatch", "balance")


class JobWatch:
    """The state of a watched job."""

    def __init__(
        self,
        command: str,
        *,
        elastic: bool,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Start watching a job.

        Args:
            command: The command to display, without its arguments, which may be secret.
            elastic: Whether the job is elastic.
            clock: Returns monotonic time, in seconds.
            wall: Returns the time of day, in seconds since the epoch.
        """
        self._lock = threading.Lock()
        self._clock, self._wall = clock, wall
        self._command = printable(command)
        self._elastic = elastic
        self._began = clock()
        self._began_at = wall()
        self._state = "starting"
        self._view = 0
        self._resets = 0
        self._ranks: dict[int, WatchedRank] = {}  # by process number
        self._listeners: dict[int, Listener] = {}
        self._hosts: dict[str, str] = {}  # state by name
        self._events = Events()
        self._recoveries = Recoveries()
        self._encodings = Encodings()
        self._history: deque[dict[str, float]] = deque(maxlen=HISTORY)

    # ------------------------------------------------------------------ updates by the launcher

    def host(self, name: str, state: str) -> None:
        """Set the state of a host: "up" or "lost"."""
        with self._lock:
            self._hosts[printable(name)] = state

    def started(self, process: int, rank: int | None, host: str, slot: int) -> None:
        """Record that a process was started; `rank` is None for a standby."""
        with self._lock:
            host = printable(host)
            self._hosts.setdefault(host, "up")
            self._ranks[process] = WatchedRank(process, rank, host, slot, self._clock())
            self._listeners[process] = Listener()
            self._state = "running"

    def ended(self, process: int, status: int, how: str, *, expected: bool = False) -> None:
        """Record the end of a process; `expected` means that it was told to end."""
        with self._lock:
            one = self._ranks.get(process)
            if one is None or not one.lives:
                return
            now = self._clock()
            one.status, one.ended_at = status, now
            self._listeners.pop(process, None)
            self._encodings.decided(process, {})  # another member of each set reports from now on
            if status != 0 and not expected:
                if self._elastic and one.rank is not None and self._view > 0:
                    self._recoveries.lost(one, how, self._view, now, self._wall())
                named = f"rank {one.rank}" if one.rank is not None else "a standby"
                self._add("lost", f"{named} on {one.host}: {how}", "error", one)
            self._forget()

    def report(self, reports: Mapping[object, object], host: str) -> None:
        """Process the report of a host's supervisor: the changed values of its processes."""
        with self._lock:
            now = self._clock()
            for key, changed in reports.items():
                process = numbered(key)
                one = None if process is None else self._ranks.get(process)
                if one is None or one.host != printable(host) or not isinstance(changed, dict):
                    continue
                if not one.lives:
                    continue
                before = one.encodings
                one.take(changed, now)
                self._take_encodings(one, before)
                self._take_notes(one, changed.get("notes"))
            self._look(now)
            if not self._history or now - self._history[-1]["at"] >= _INTERVAL_S:
                self._history.append(self._point(now))

    def printed(self, process: int, data: bytes) -> None:
        """Process what a process wrote to standard error."""
        listener = self._listeners.get(process)
        if listener is None:
            return
        for said in listener.feed(data):
            with self._lock:
                self._add(said.kind, said.text, said.severity, self._ranks.get(process))

    def event(self, kind: str, text: str, severity: str = "info") -> None:
        """Add an event of the launcher; `severity` is "info", "warning" or "error"."""
        with self._lock:
            self._add(kind, text, severity)

    def membership(
        self, view: int, resets: int, parts: Iterable[tuple[int, int | None, str]]
    ) -> None:
        """Update the membership of an elastic job.

        Args:
            view: The number of the view.
            resets: How often the ranks have changed.
            parts: The process, rank and part of each process; the rank is None if it has none.
        """
        with self._lock:
            for process, rank, part in parts:
                if (one := self._ranks.get(process)) is not None and one.lives:
                    one.rank, one.part = rank, part
            if view != self._view:
                size = sum(one.lives and one.rank is not None for one in self._ranks.values())
                self._add("view", f"view {view}: {size} ranks", "info")
            self._view, self._resets = view, resets
            self._forget()
            self._look(self._clock())

    def stopping(self, why: str) -> None:
        """Record that the remaining processes of the job are being ended."""
        with self._lock:
            if self._state != "ending":
                self._state = "ending"
                self._add("end", why, "info")

    def _look(self, now: float) -> None:
        for phase in self._recoveries.look(self._view, self._ranks.values(), now):
            self._add("recovery", phase, "info")

    def _add(self, kind: str, text: str, severity: str, one: WatchedRank | None = None) -> None:
        ranks = [] if one is None or one.rank is None else [one.rank]
        self._events.add(kind, text, self._wall(), severity=severity, ranks=ranks)

    def _take_encodings(self, one: WatchedRank, before: EncodedOfRank) -> None:
        if one.encodings is not before:
            self._encodings.take(before, one.encodings)
            for name in sorted({name for _, name in one.encodings} - {name for _, name in before}):
                self._add("compression", f"tensors are sent as {name} between hosts", "info", one)
        for text in self._encodings.decided(one.process, one.adaptive):
            self._add("compression", text, "info")

    def _take_notes(self, one: WatchedRank, notes: object) -> None:
        for note in notes if isinstance(notes, list) else []:
            if isinstance(note, list) and len(note) == 2 and note[0] in _NOTES:
                severity = "error" if note[0] == "mismatch" else "info"
                self._add(note[0], str(note[1]), severity, one)

    def _forget(self) -> None:
        """Drop ended processes whose rank is taken again, and the oldest others beyond a limit.

        An elastic job may go through thousands of processes.
        """
        if not self._elastic:
            return
        taken = {one.rank for one in self._ranks.values() if one.lives}
        gone = [one for one in self._ranks.values() if not one.lives and one.rank in taken]
        ended = sorted((one for one in self._ranks.values() if not one.lives),
                       key=lambda one: one.ended_at)  # fmt: skip
        for one in (*gone, *ended[: max(0, len(ended) - _KEPT_ENDED)]):
            self._ranks.pop(one.process, None)

    def _point(self, now: float) -> dict[str, float]:
        """Return a point of the history.

        Times are means over the living ranks that make steps, in seconds a step. `bytes` is the sum
        over all living ranks, in bytes per second.
        """
        living = [one for one in self._ranks.values() if one.lives]
        steps = [one.step for one in living if one.step and one.steps_per_second(now)]
        return {
            "at": round(now, 3),
            "computing": _mean(one.computing for one in steps),
            "exposed": _mean(one.exposed for one in steps),
            "waiting": _mean(one.waiting for one in steps),
            "bytes": round(sum(one.rates["reduced_bytes"] for one in living)),
        }

    # ------------------------------------------------------------------ queries by the server

    def snapshot(self, since: int = 0) -> dict[str, Any]:
        """Return the whole state as JSON values, with only the events numbered above `since`."""
        with self._lock:
            now = self._clock()
            sets, late = process_sets(self._ranks.values(), now)
            ranks = [self._describe(one, now, late) for one in self._sorted()]
            return {
                "job": self._job(now, stalled=bool(late)),
                "ranks": ranks,
                "sets": sets,
                "links": self._links(),
                "history": [
                    {**point, "at": round(point["at"] - now, 1)} for point in self._history
                ],
                "findings": self._findings(now),
                "recoveries": self._recoveries.describe(),
                "events": self._events.since(since),
            }

    def _sorted(self) -> list[WatchedRank]:
        return sorted(
            self._ranks.values(), key=lambda one: (one.rank is None, one.rank or 0, one.process)
        )

    def _job(self, now: float, *, stalled: bool) -> dict[str, Any]:
        living = [one for one in self._ranks.values() if one.lives and one.rank is not None]
        scripts = [step for one in living if (step := one.progress.counters.get("step"))]
        speeds = [speed for one in living if (speed := one.steps_per_second(now))]
        return {
            "command": self._command,
            "state": self._state_of_job(stalled),
            "elastic": self._elastic,
            "view": self._view,
            "changes": self._resets,
            "size": len(living),
            "hosts": dict(sorted(self._hosts.items())),
            "began": round(self._began_at, 3),
            "seconds": round(now - self._began, 1),
            # A script that counts its own steps keeps counting across views.
            "steps": max(scripts, default=0) or max((one.steps for one in living), default=0),
            "steps_per_second": round(median(speeds), 3) if speeds else 0.0,
            "reduced_bytes_per_second": round(sum(one.rates["reduced_bytes"] for one in living)),
            "encodings": by_encoding(self._encodings.totals(one.encodings for one in living)),
        }

    def _state_of_job(self, stalled: bool) -> str:
        if self._state != "running":
            return self._state
        if self._recoveries.going_on:
            return "recovering"
        return "stalled" if stalled else "running"

    def _describe(self, one: WatchedRank, now: float, late: set[int]) -> dict[str, Any]:
        waits = max(
            (entry for entry in one.progress.sets if entry["pending"]),
            key=lambda entry: float(entry["pending_seconds"]),
            default=None,
        )
        state = one.state(now, one.rank in late)
        return {
            "rank": one.rank,
            "process": one.process,
            "host": one.host,
            "slot": one.slot,
            "state": state,
            "status": one.status,
            "steps": one.steps,
            "counters": one.progress.counters,
            "steps_per_second": round(one.steps_per_second(now), 3),
            "step": None if one.step is None else one.step.describe(),
            "reduced_bytes_per_second": round(one.rates["reduced_bytes"]) if one.lives else 0,
            "pending": "" if waits is None or not one.lives else waits["pending_operation"],
            "waits_seconds": round(one.waits(now), 1) if one.lives else 0.0,
            "reported_seconds_ago": round(now - one.progress.reported_at, 1),
        }

    def _links(self) -> list[dict[str, Any]]:
        host_of = {one.rank: one.host for one in self._ranks.values() if one.lives}
        rates: dict[tuple[str, str], float] = {}
        for one in self._ranks.values():
            if not one.lives:
                continue
            here = (one.host, one.host)
            rates[here] = rates.get(here, 0.0) + one.rates["shared_bytes"]
            for peer, rate in one.link_rates.items():
                link = (one.host, host_of.get(peer, "?"))
                rates[link] = rates.get(link, 0.0) + rate
        fastest = sorted(rates.items(), key=lambda item: (-item[1], item[0]))
        return [
            {"from": source, "to": target, "bytes_per_second": round(rate)}
            for (source, target), rate in fastest[:MOST_LINKS]
        ]

    def _findings(self, now: float) -> list[dict[str, Any]]:
        members = {
            one.rank: one.progress
            for one in self._ranks.values()
            if one.lives and one.rank is not None and one.reported and one.part in (None, "member")
        }
        return [
            {"what": one["what"], "text": printable(one["text"])}
            for one in findings(members, now)[:_MOST_FINDINGS]
        ]

    def encodings(self) -> tuple[list[EncodedTotal], dict[tuple[str, str], int]]:
        """Return the totals of lossy encodings, and tensor counts of adaptive compression.

        The counts are by process set and encoding.
        """
        with self._lock:
            living = [one for one in self._sorted() if one.lives and one.rank is not None]
            return (
                self._encodings.totals(one.encodings for one in living),
                chosen_tensors(one.adaptive for one in living),
            )

    def ranks(self) -> list[RankTotals]:
        """Return the counters of the living ranks, without standbys."""
        with self._lock:
            now = self._clock()
            return [
                RankTotals(
                    one.rank,
                    one.host,
                    one.steps,
                    one.totals,
                    dict(one.counters),
                    round(now - one.progress.reported_at, 3),
                    dict(one.late),
                )
                for one in self._sorted()
                if one.rank is not None and one.lives
            ]


class RankTotals(NamedTuple):
    """The counters of a rank since it started."""

    rank: int
    host: str
    steps: int
    totals: tuple[float, float, float]  # seconds in steps, exposed communication, waiting
    counters: dict[str, float]
    age: float  # seconds since its last report
    late: dict[int, tuple[float, float]]  # rank others waited for: (times, seconds)


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return round(fmean(known), 6) if known else 0.0
