"""Errors on the command line, and the parsing of numbers there."""

from __future__ import annotations


class UsageError(ValueError):
    """The command line is invalid. The message says what to do."""


def seconds(flag: str, text: str | None, default: float) -> float:
    """Return the seconds of a flag, or `default` if it is not given."""
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UsageError(f"{flag}: expected a number of seconds, not {text!r}")
    return value
