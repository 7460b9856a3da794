"""Each rank's batch size from its cost per sample: pure functions.

A cost is the compute time of a rank for one sample, in seconds. 0.0 means unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median


def balanced(total: int, costs: Sequence[float], most: int | None = None) -> list[int]:
    """Split `total` samples so that the compute time of the slowest rank is minimal.

    Each rank gets at least one sample and at most `most`. A rank with an unknown cost counts as
    average. Raises ValueError if no such split exists.
    """
    limit = total if most is None else most
    if not len(costs) <= total <= limit * len(costs):
        raise ValueError(f"{total} samples can't be split over {len(costs)} ranks, {most} at most")
    costs = known(costs)
    whole = sum(1.0 / one for one in costs)
    sizes = [min(max(int(total / one / whole), 1), limit) for one in costs]
    # An approximation. Each remaining sample goes to the rank that would finish it first.
    while sum(sizes) < total:
        free = (i for i, size in enumerate(sizes) if size < limit)
        sizes[min(free, key=lambda i: (sizes[i] + 1) * costs[i])] += 1
    while sum(sizes) > total:
        free = (i for i, size in enumerate(sizes) if size > 1)
        sizes[max(free, key=lambda i: sizes[i] * costs[i])] -= 1
    return sizes


def rebalanced(
    sizes: Sequence[int], costs: Sequence[float], hysteresis: float, most: int | None = None
) -> list[int]:
    """Return sizes that shorten the step by more than a fraction of `hysteresis`, or `sizes`."""
    proposed = balanced(sum(sizes), costs, most)
    all_known = known(costs)
    if step_seconds(proposed, all_known) < (1.0 - hysteresis) * step_seconds(sizes, all_known):
        return proposed
    return list(sizes)


def step_seconds(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """Return the compute time of the slowest rank."""
    return max(size * cost for size, cost in zip(sizes, costs, strict=True))


def known(costs: Sequence[float]) -> list[float]:
    """Replace unknown costs by the median, or by 1.0 if none is known."""
    there = [one for one in costs if one > 0.0]
    usual = median(there) if there else 1.0
    return [one if one > 0.0 else usual for one in costs]
