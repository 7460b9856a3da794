"""Evaluates timelines: a job's steps, the cost of communication, and late ranks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from horoscale.timeline.files import Key, Operation, RankTimeline, Span
from horoscale.timeline.parts import Parts


@dataclass(frozen=True)
class Step:
    """A step of one rank, in seconds."""

    begin: float
    end: float
    executed: float  # time with an operation in progress, whether the program waited or not
    parts: Parts


@dataclass(frozen=True)
class Lateness:
    """Who waited for whom."""

    seconds: dict[tuple[int, int], float]  # (waiting, awaited): time that operations waited
    last: Counter[int]  # number of operations that a rank was the last to submit
    operations: int  # number of operations submitted by several ranks


def step_title(operations: Sequence[Operation]) -> str | None:
    """Return the operation whose repetitions are the steps.

    Of the names with the most common number of repetitions, it is the one that came first. None if
    no name repeats.
    """
    counts = Counter(one.title for one in operations if not one.title.endswith(": unnamed"))
    repeated = {title: count for title, count in counts.items() if count > 1}
    if not repeated:
        return None
    typical = Counter(repeated.values()).most_common(1)[0][0]
    by_time = sorted(operations, key=lambda one: one.submitted)
    return next(one.title for one in by_time if repeated.get(one.title) == typical)


def steps(timeline: RankTimeline, title: str) -> list[Step]:
    """Return the steps of a rank. Each begins when the operation of this title is submitted."""
    begins = sorted(one.submitted for one in timeline.operations if one.title == title)
    executed = merged((one.started, one.done) for one in timeline.operations)
    waited = merged(timeline.waits)
    either = merged([*executed, *waited])
    bounds = list(pairwise(begins))
    seen = zip(*(_covered(spans, bounds) for spans in (executed, waited, either)), strict=True)
    return [
        Step(begin, end, of_step[0], Parts.observed(end - begin, *of_step))
        for (begin, end), of_step in zip(bounds, seen, strict=True)
    ]


def lateness(ranks: Sequence[RankTimeline]) -> Lateness:
    """Return who waited for the last member to submit an operation, for complete operations."""
    submitted: dict[Key, dict[int, float]] = defaultdict(dict)
    for one in ranks:
        for operation in one.operations:
            submitted[operation.key][one.rank] = operation.submitted
    spans: dict[tuple[int, int], list[Span]] = defaultdict(list)
    last: Counter[int] = Counter()
    for times in submitted.values():
        if len(times) < 2:
            continue
        awaited = max(times, key=lambda rank: times[rank])
        last[awaited] += 1
        for rank, time in times.items():
            if rank != awaited:
                spans[rank, awaited].append((time, times[awaited]))
    # Several operations may wait for a rank at the same time.
    seconds = {pair: total(merged(found)) for pair, found in spans.items()}
    return Lateness(seconds, last, sum(last.values()))


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return the union of spans as disjoint spans, in order."""
    result: list[Span] = []
    for begin, end in sorted(spans):
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((begin, end))
    return result


def total(spans: Iterable[Span]) -> float:
    """Return the total length of spans."""
    return sum(end - begin for begin, end in spans)


def _covered(spans: Sequence[Span], bounds: Sequence[Span]) -> list[float]:
    """Return how much of each of some ordered times is covered by disjoint spans."""
    result = []
    first = 0
    for begin, end in bounds:
        while first < len(spans) and spans[first][1] <= begin:
            first += 1
        covered, at = 0.0, first
        while at < len(spans) and spans[at][0] < end:
            covered += min(end, spans[at][1]) - max(begin, spans[at][0])
            at += 1
        result.append(covered)
    return result
