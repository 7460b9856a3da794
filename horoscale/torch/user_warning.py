"""Warnings that point to the user's line, however deep in horoscale and PyTorch they arise."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

_NOT_THE_USERS = ("horoscale", "torch", "contextlib")


def warn_user(text: str) -> None:
    """Warn, with the location of the line of the user's program that led here."""
    level = 1
    frame = sys._getframe()
    while frame.f_back is not None and _package(frame) in _NOT_THE_USERS:
        frame = frame.f_back
        level += 1
    warnings.warn(text, stacklevel=level)


def _package(frame: FrameType) -> str:
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0]
