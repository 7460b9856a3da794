"""Warnings that point to the user's code, from any depth in horoscale and PyTorch."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

_NOT_THE_USERS = ("horoscale", "torch", "contextlib")


def warn_user(text: str) -> None:
    """Warn, with the location in the user's program from which this was called."""
    level = 1
    frame = sys._getframe()
    while frame.f_back is not None and _package(frame) in _NOT_THE_USERS:
        frame = frame.f_back
        level += 1
    warnings.warn(text, stacklevel=level)


def _package(frame: FrameType) -> str:
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0]
