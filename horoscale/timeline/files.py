"""The files of a job's timelines: reading them, and merging them into one file."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

Event = dict[str, Any]
Span = tuple[float, float]
Key = tuple[str, int]

# Clocks of ranks on one host agree. Clocks of two hosts start at different times; a difference that
# exceeds a message's latency shows that they are separate.
_SAME_CLOCK_S = 1.0

_RANK_SUFFIX = re.compile(r"(.*)\.rank(\d+)")


class TimelineError(ValueError):
    """A file or folder does not contain a timeline. The message is for the user."""


@dataclass(frozen=True)
class Operation:
    """One operation on one rank. Times are seconds on the clock of rank 0."""

    title: str  # process set and name, such as "set 0: gradient.fc.weight"
    kind: str  # "allreduce", …
    submitted: float
    planned: float  # when every member had submitted it and the plan had arrived
    started: float
    done: float
    arguments: Event  # bytes, priority, entry, bucket_tensors, status; one_hop without an entry

    @property
    def key(self) -> Key:
        """A key that identifies the operation on all ranks: the title, and its place in the plan.

        One-hop operations are in no plan. They are counted separately, in the same order on all
        ranks.
        """
        return self.title, int(self.arguments["entry"]) or -int(self.arguments.get("one_hop", 0))


@dataclass
class RankTimeline:
    """The timeline of one rank."""

    rank: int
    events: list[Event]
    operations: list[Operation] = field(default_factory=list)  # in order of their ends
    waits: list[Span] = field(default_factory=list)  # when the program was blocked

    def shift(self, seconds: float) -> None:
        """Convert all times to another clock."""
        for event in self.events:
            if "ts" in event:
                event["ts"] += seconds * 1e6
        self.operations, self.waits = _understood(self.events)


def read(path: Path) -> RankTimeline:
    """Read the file of one rank, which is incomplete if the rank was killed.

    Raises TimelineError, also for a file with several ranks.
    """
    events = _events(path)
    ranks = {event["pid"] for event in events}
    if len(ranks) != 1:
        raise TimelineError(f"{path}: expected the timeline of one rank, found {len(ranks)}")
    operations, waits = _understood(events)
    return RankTimeline(ranks.pop(), events, operations, waits)


def read_job(place: Path) -> list[RankTimeline]:
    """Read the timelines of a job, ordered by rank, on the clock of the first rank.

    `place` is the file of rank 0, next to the others, or a folder with one job's files.
    Raises TimelineError.
    """
    ranks = sorted((read(path) for path in _files_of_job(place)), key=lambda one: one.rank)
    numbers = [one.rank for one in ranks]
    if len(set(numbers)) != len(numbers):
        raise TimelineError(f"{place} has timelines of several jobs: pass the file of rank 0")
    for one in ranks[1:]:
        if offset := _offset(one, ranks[0]):
            one.shift(offset)
    return ranks


def merge(ranks: Sequence[RankTimeline]) -> str:
    """Return one Chrome trace with a process for each rank, in order."""
    events = [event for one in ranks for event in one.events]
    events += [
        {"ph": "M", "name": "process_sort_index", "pid": one.rank, "args": {"sort_index": one.rank}}
        for one in ranks
    ]
    return "[\n" + ",\n".join(json.dumps(event) for event in events) + "\n]\n"


def _files_of_job(place: Path) -> list[Path]:
    if place.is_file():
        beside = (path for path in place.parent.iterdir() if path.name.startswith(place.name))
        others = [path for path in beside if _RANK_SUFFIX.fullmatch(path.name)]
        return [place, *(p for p in others if p.name.rpartition(".rank")[0] == place.name)]
    if not place.is_dir():
        raise TimelineError(f"there is no {place}")
    files = [path for path in place.iterdir() if path.is_file()]
    first = {match[1] for path in files if (match := _RANK_SUFFIX.fullmatch(path.name))}
    if len(first) > 1:
        names = ", ".join(sorted(first))
        raise TimelineError(f"{place} has timelines of several jobs ({names}): give one of these")
    found = [path for path in files if path.name in first or _RANK_SUFFIX.fullmatch(path.name)]
    found = found or [path for path in files if path.suffix == ".json"]
    if not found:
        raise TimelineError(f"{place} has no timelines (*.json, *.rank1)")
    return found


def _events(path: Path) -> list[Event]:
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        events = json.loads(text)
    except ValueError:
        events = _whole_events(text)
    if not isinstance(events, list) or not all(
        isinstance(event, dict) and "ph" in event and isinstance(event.get("pid"), int)
        for event in events
    ):
        raise TimelineError(f"{path} is not a timeline of horoscale")
    if not events:
        raise TimelineError(f"{path} has no events")
    return events


def _whole_events(text: str) -> list[Any]:
    """Return the complete events. Each is on its own line; the last one may be truncated."""
    events = []
    for line in text.removeprefix("[").splitlines():
        if not line.strip() or line.strip() == "]":
            continue
        try:
            events.append(json.loads(line.rstrip().removesuffix(",")))
        except ValueError:
            break
    return events


def _understood(events: Sequence[Event]) -> tuple[list[Operation], list[Span]]:
    titles: dict[int, str] = {}
    phases: dict[int, dict[str, Span]] = {}
    operations, waits = [], []
    for event in events:
        if event["ph"] == "M":
            if event["name"] == "thread_name":
                titles[event["tid"]] = event["args"]["name"]
            continue
        name, begin = event["name"], event["ts"] / 1e6
        span = (begin, begin + event["dur"] / 1e6)
        if name == "WAIT":
            waits.append(span)
        elif name in ("NEGOTIATE", "QUEUE"):
            phases.setdefault(event["tid"], {})[name] = span
        elif "bytes" in event["args"]:
            # The phases of an operation precede it immediately.
            submitted, planned = phases.pop(event["tid"], {}).get("NEGOTIATE", span)
            title = titles.get(event["tid"], "")
            operations.append(Operation(title, name, submitted, planned, *span, event["args"]))
    return operations, waits


def _offset(own: RankTimeline, first: RankTimeline) -> float:
    """Return the offset from a rank's clock to the first rank's; 0 if they share one."""
    ends = {operation.key: operation.done for operation in first.operations}
    differences = [
        ends[operation.key] - operation.done
        for operation in own.operations
        if operation.key in ends
    ]
    # A collective ends at nearly the same time on all ranks.
    offset = median(differences) if differences else 0.0
    return offset if abs(offset) > _SAME_CLOCK_S else 0.0
