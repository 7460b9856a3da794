"""Numbers in what a process reports, which may be anything."""

from __future__ import annotations

_MOST = 1e18
_MOST_DIGITS = 9


def number(value: object) -> float:
    """Return a number that a rank gives; 0 for what is none, or can't be."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value) if 0 <= value < _MOST else 0.0  # NaN is neither


def numbered(key: object) -> int | None:
    """Return the number that a key of JSON is; None if it is none, or none of a process."""
    text = str(key)
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None
