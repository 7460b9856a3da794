"""Numbers in reports of processes, which are not trusted."""

from __future__ import annotations

MOST = 1e18
_MOST_DIGITS = 9


def number(value: object) -> float:
    """Return a reported number; 0 if it is not a number, negative or too large."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value) if 0 <= value < MOST else 0.0  # false for NaN


def numbered(key: object) -> int | None:
    """Return a key of JSON as the number of a process; None if it is not one."""
    text = str(key)
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None
