"""Recoveries of an elastic job from the loss of ranks, tracked phase by phase."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import Any

from horoscale.watch.rank import WatchedRank

KEPT = 8
_MOST_LOST = 64  # lost ranks listed per recovery

# Phases in the order they occur; a job may skip some.
LOST = "ranks were lost"
NOTICED = "a survivor has reported"
REPORTED = "all survivors have reported"
VIEW = "they have a new view"
JOINED = "all ranks of the view have met"
STEPPED = "the first step"


class Recoveries:
    """The most recent recoveries (at most `KEPT`), newest last."""

    def __init__(self) -> None:
        self._kept: deque[dict[str, Any]] = deque(maxlen=KEPT)

    def describe(self) -> list[dict[str, Any]]:
        """Return the recoveries as JSON values; phase times are in seconds since the loss."""
        return [
            {
                "time": one["time"],
                "lost": one["lost"],
                "phases": [{"what": what, "seconds": s} for what, s in one["phases"].items()],
                "over": one["over"],
            }
            for one in self._kept
        ]

    @property
    def _open(self) -> dict[str, Any] | None:
        return self._kept[-1] if self._kept and not self._kept[-1]["over"] else None

    @property
    def going_on(self) -> bool:
        """Whether a recovery is in progress."""
        return self._open is not None

    def lost(self, rank: WatchedRank, how: str, view: int, now: float, at: float) -> None:
        """Record the loss of a rank; start a recovery if none is in progress.

        Args:
            rank: The lost rank.
            how: How its process ended.
            view: The view it was lost from.
            now: The time on the monotonic clock, in seconds.
            at: The time of day, in seconds since the epoch.
        """
        one = self._open
        if one is None:
            phases = {LOST: 0.0}
            one = {"time": round(at, 3), "began": now, "view": view, "lost": [], "phases": phases}
            one.update(over=False, steps={})
            self._kept.append(one)
        if len(one["lost"]) < _MOST_LOST:
            one["lost"].append({"rank": rank.rank, "host": rank.host, "how": how})

    def look(self, view: int, ranks: Collection[WatchedRank], now: float) -> list[str]:
        """Update the current recovery from the ranks' state; return the phases newly reached."""
        one = self._open
        if one is None:
            return []
        members = [rank for rank in ranks if rank.lives and rank.rank is not None]
        reached: list[str] = []
        if view == one["view"]:
            waiting = [rank for rank in members if rank.part == "waiting"]
            reached += [NOTICED] * bool(waiting)
            reached += [REPORTED] * (bool(waiting) and len(waiting) == len(members))
        else:
            if VIEW not in one["phases"]:
                one["steps"] = {}
            reached += [VIEW]
            met = [rank for rank in members if rank.view == view]
            stepped = _have_stepped(one["steps"], met)
            if members and len(met) == len(members):
                reached += [JOINED]
                reached += [STEPPED] * stepped
        new = [what for what in reached if what not in one["phases"]]
        for what in new:
            one["phases"][what] = round(now - one["began"], 3)
        one["over"] = STEPPED in one["phases"]
        return new


def _have_stepped(first: dict[int, object], members: Collection[WatchedRank]) -> bool:
    """Return whether any member has progressed since it joined the others in the view.

    `first` maps each process to its progress when it joined; new processes are added to it.
    """
    done = {rank.process: how_far(rank) for rank in members}
    return any(first.setdefault(process, how) != how for process, how in done.items())


def how_far(rank: WatchedRank) -> Mapping[str, int]:
    """Return a rank's progress: the counters of its script, except the epoch, and its steps."""
    counters = {name: value for name, value in rank.progress.counters.items() if name != "epoch"}
    return {**counters, "steps": rank.steps}
