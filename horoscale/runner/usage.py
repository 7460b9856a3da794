"""What users say wrong on the command line, and the numbers that they give there."""

from __future__ import annotations


class UsageError(ValueError):
    """What the user asked for can't be; the message says what to do."""


def seconds(flag: str, text: str | None, default: float) -> float:
    """Return the seconds that a flag gives; `default` where it is not there."""
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UsageError(f"{flag}: expected a number of seconds, not {text!r}")
    return value
