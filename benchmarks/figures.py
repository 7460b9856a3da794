"""The figures of a benchmark: every round of every implementation, and their statistics.

A ratio always compares times of one round, in which all implementations ran on the machine in the
same state. It is given as the median over the rounds, with the range.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

Rounds = dict[str, list[float]]  # for one case: the seconds of each implementation, round by round
Figures = dict[str, Rounds]


class Measurable(Protocol):
    """What is measured: the ranks of an implementation, or one operation of theirs."""

    @property
    def name(self) -> str:
        """Of the implementation."""

    def measure(self, *order: Any) -> float:
        """Return seconds."""


def interleave(
    jobs: Sequence[Measurable], cases: Mapping[str, Sequence[Any]], rounds: int
) -> Figures:
    """Measure each case `rounds` times, alternating the jobs; a case's value is their order."""
    figures: Figures = {}
    for case, order in cases.items():
        figures[case] = {job.name: [] for job in jobs}
        for index in range(rounds):
            first = index % len(jobs)  # so that no job always follows the same one
            for job in [*jobs[first:], *jobs[:first]]:
                figures[case][job.name].append(job.measure(*order))
    return figures


def ratios(rounds: Rounds, above: str, below: str) -> list[float]:
    """The time of one implementation divided by another's, round by round."""
    return [a / b for a, b in zip(rounds[above], rounds[below], strict=True)]


def mean_ratios(cases: Sequence[Rounds], above: str, below: str) -> list[float]:
    """The geometric mean over the cases of their ratios, round by round."""
    each = [ratios(rounds, above, below) for rounds in cases]
    return [statistics.geometric_mean(of_round) for of_round in zip(*each, strict=True)]


def spread(values: Sequence[float]) -> str:
    """Format median and range."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def medians(figures: Figures, unit: str, per_second: float) -> Iterator[str]:
    """Lines of a table: the median of each implementation, in fractions of a second."""
    names = list(next(iter(figures.values())))
    width = max(map(len, [*figures, unit]))
    column = max(18, *(len(name) + 2 for name in names))
    yield f"{unit:>{width}}" + "".join(f"{name:>{column}}" for name in names)
    for case, rounds in figures.items():
        cells = (f"{statistics.median(rounds[name]) * per_second:{column},.1f}" for name in names)
        yield f"{case:>{width}}" + "".join(cells)


def comparison(figures: Figures, pairs: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Lines: for each case, the ratios of all pairs that were both measured."""
    width = max(map(len, figures))
    yield "ratios of times: median (range over the rounds)"
    for above, below in pairs:
        for case, rounds in figures.items():
            if rounds.keys() >= {above, below}:
                yield f"{case:>{width}}   {above} / {below}: {spread(ratios(rounds, above, below))}"


def write(path: Path | None, figures: Figures, **facts: object) -> None:
    """Write the seconds of every round, and facts about the run, to a JSON file on request."""
    if path:
        facts["cores"] = len(os.sched_getaffinity(0))
        path.write_text(json.dumps(facts | {"seconds": figures}, indent=1))
