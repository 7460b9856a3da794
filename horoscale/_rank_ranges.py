"""How messages and errors list ranks."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence

_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def rank_ranges(ranks: Iterable[int], most: int | None = None) -> str:
    """Return sorted ranks as text, such as 0-3,7; "…" replaces ranges beyond `most`."""
    # Consecutive ranks differ from their positions by the same number.
    runs = itertools.groupby(enumerate(ranks), key=lambda pair: pair[1] - pair[0])
    parts = []
    for _, run in runs:
        members = [rank for _, rank in run]
        parts.append(str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}")
    if most is not None and len(parts) > most:
        parts = [*parts[:most], "…"]
    return ",".join(parts)


def rank_intervals(text: str) -> list[tuple[int, int]] | None:
    """Return the first and last rank of each range of such a text; None if it was cut."""
    found = [_RANGE.fullmatch(part.strip()) for part in text.split(",")]
    whole = [(int(one[1]), int(one[2] or one[1])) for one in found if one is not None]
    return whole if len(whole) == len(found) else None


def named(ranks: Sequence[int], most: int | None = None) -> str:
    """Return text such as "rank 3" or "ranks 0-3,7"."""
    return f"rank{'s' if len(ranks) > 1 else ''} {rank_ranges(ranks, most)}"
