"""What is known of one process of a watched job, and how fast it goes by its last reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from horoscale.driver.progress import SILENT_S, Progress
from horoscale.watch.encodings import ChosenOfRank, EncodedOfRank, chosen_of, encoded_of
from horoscale.watch.values import MOST, number, numbered

_LASTING_S = 1.0  # an operation that was pending for so long is taken to be still
WAITS_S = 2.0  # an operation that has been pending for so long is told of
_STEP_IS_OLD = 3.0  # steps, or seconds: a rank without one for longer makes none now
_LEAST_S = 1e-6  # less than that no step takes, and no two reports are apart
_MOST_LINKS = 16
_MOST_LATE = 16
_COUNTERS = (
    "operations",
    "reduced_bytes",
    "message_bytes",
    "shared_bytes",
    "network_bytes",
)
_KNOWN = (
    *_COUNTERS,
    *("at", "view", "steps", "links", "late", "sets"),
    *("computing_seconds", "waiting_seconds"),
    *("commit", "epoch", "step", "batch"),
)


@dataclass(frozen=True)
class Step:
    """The last steps of a rank, on average, in seconds."""

    seconds: float
    exposed: float  # a thread was blocked while a bucket was executed
    waiting: float  # a thread was blocked while none was

    @property
    def computing(self) -> float:
        """What is left."""
        return max(0.0, self.seconds - self.exposed - self.waiting)

    def describe(self) -> dict[str, float]:
        """Return it as values of JSON."""
        return {
            "seconds": round(self.seconds, 6),
            "computing_seconds": round(self.computing, 6),
            "exposed_seconds": round(self.exposed, 6),
            "waiting_seconds": round(self.waiting, 6),
        }


class WatchedRank:
    """One process."""

    def __init__(self, process: int, rank: int | None, host: str, slot: int, now: float) -> None:
        self.process = process
        self.rank = rank
        self.host = host
        self.slot = slot
        self.part: str | None = None  # in an elastic job, as its driver calls it
        self.status: int | None = None  # of one that has ended
        self.ended_at = 0.0
        self.progress = Progress(now)
        self.reported = False
        self.view = 0  # of an elastic job, in which it has met the others; 0: none
        self.steps = 0
        self.totals = (0.0, 0.0, 0.0)  # seconds of all steps, exposed, waiting
        self.step: Step | None = None
        self.stepped_at = now
        self.counters = dict.fromkeys(_COUNTERS, 0.0)
        self.rates = dict.fromkeys(_COUNTERS, 0.0)  # a second
        self.links: dict[int, float] = {}  # bytes sent to a rank
        self.link_rates: dict[int, float] = {}
        # By rank, how often the others waited for it, and for how many seconds; known on rank 0.
        self.late: dict[int, tuple[float, float]] = {}
        self.encodings: EncodedOfRank = {}  # lossy ones between hosts
        self.adaptive: ChosenOfRank = {}  # what adaptive compression has chosen
        self._values: dict[str, Any] = {}
        self._at = 0.0  # on the clock of the rank

    def take(self, changed: Mapping[str, Any], now: float) -> None:
        """Take a report: what has changed since the one before."""
        self._values.update({name: changed[name] for name in _KNOWN if name in changed})
        self.reported = True
        self.view = int(number(self._values.get("view")))
        self.progress.take(self._values, now)
        at = number(self._values.get("at"))
        seconds, self._at = at - self._at, at
        if "steps" in changed:
            self._take_steps(changed["steps"], now)
        if "encodings" in changed:
            self.encodings = encoded_of(changed["encodings"])
        if "adaptive" in changed:
            self.adaptive = chosen_of(changed["adaptive"])
        if "operations" not in self._values:  # between two jobs
            return
        counters = {name: number(self._values.get(name)) for name in _COUNTERS}
        links = _links(self._values.get("links"))
        if _LEAST_S < seconds < MOST and self.counters["operations"] <= counters["operations"]:
            self.rates = {
                name: max(0.0, counters[name] - self.counters[name]) / seconds for name in _COUNTERS
            }
            self.link_rates = {
                peer: max(0.0, sent - self.links.get(peer, 0.0)) / seconds
                for peer, sent in links.items()
            }
        self.counters, self.links = counters, links
        self.late = _late(self._values.get("late"))

    def _take_steps(self, given: object, now: float) -> None:
        if not isinstance(given, list) or len(given) != 4:
            return
        count, *totals = (number(one) for one in given)
        if count < self.steps:  # another runtime's
            self.steps, self.totals = 0, (0.0, 0.0, 0.0)
        if (more := int(count) - self.steps) > 0:
            seconds, exposed, waiting = (
                max(0.0, new - old) / more for new, old in zip(totals, self.totals, strict=True)
            )
            self.step = Step(seconds, exposed, waiting)
            self.stepped_at = now
        self.steps = int(count)
        self.totals = (totals[0], totals[1], totals[2])

    @property
    def lives(self) -> bool:
        """Whether the process has not ended."""
        return self.status is None

    def steps_per_second(self, now: float) -> float:
        """Return how fast it goes; 0 where no step has ended for much longer than one takes."""
        if self.step is None or self.step.seconds < _LEAST_S or not self.lives:
            return 0.0
        if now - self.stepped_at > _STEP_IS_OLD * max(1.0, self.step.seconds):
            return 0.0
        return 1 / self.step.seconds

    def state(self, now: float, late: bool) -> str:
        """Return what it does, in a word; `late`: others wait for it."""
        if not self.lives:
            return "ended" if self.status == 0 else "failed"
        if self.part in ("starting", "ready"):
            return "standby"
        if self.part == "waiting":
            return "recovering"
        if self.part in ("leaving", "stopping"):
            return "leaving"
        if not self.reported:
            return "starting"
        if now - self.progress.reported_at >= SILENT_S:
            return "silent"
        if late:
            return "late"
        return "waiting" if self.waits(now) >= WAITS_S else "running"

    def waits(self, now: float) -> float:
        """Return for how long its oldest operation has been pending, in seconds."""
        pending = [one["pending_seconds"] for one in self.progress.sets if one["pending"]]
        return self.until_now(max(pending, default=0.0), now)

    def until_now(self, pending_seconds: float, now: float) -> float:
        """Return for how long an operation has been pending that the last report told of.

        One that was new then may well be done: it counts as new still.
        """
        if pending_seconds < _LASTING_S:
            return pending_seconds
        return pending_seconds + now - self.progress.reported_at


def _links(given: object) -> dict[int, float]:
    if not isinstance(given, dict):
        return {}
    named = [(numbered(peer), number(sent)) for peer, sent in list(given.items())[:_MOST_LINKS]]
    return {peer: sent for peer, sent in named if peer is not None}


def _late(given: object) -> dict[int, tuple[float, float]]:
    if not isinstance(given, dict):
        return {}
    found = {}
    for key, value in list(given.items())[:_MOST_LATE]:
        rank = numbered(key)
        if rank is not None and isinstance(value, list) and len(value) == 2:
            found[rank] = (number(value[0]), number(value[1]))
    return found
