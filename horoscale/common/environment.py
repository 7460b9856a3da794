"""Variables about the job that Python reads before the core does."""

from __future__ import annotations

import math
import os

_START_TIMEOUT_S = 30.0
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"", "0", "false", "no", "off"}


def variable(name: str) -> tuple[str, str | None]:
    """Return the full name and value of HOROSCALE_<name>, or else of HOROVOD_<name>."""
    for full_name in (f"HOROSCALE_{name}", f"HOROVOD_{name}"):
        if full_name in os.environ:
            return full_name, os.environ[full_name]
    return f"HOROSCALE_{name}", None


def switch(name: str) -> bool:
    """Return a variable as a bool. Raises ValueError with its name if it is neither 1 nor 0."""
    full_name, value = variable(name)
    word = (value or "").strip().lower()
    if word not in _TRUE | _FALSE:
        raise ValueError(f"{full_name}={value!r} is neither 1 nor 0")
    return word in _TRUE


def start_timeout() -> float:
    """Return the seconds that ranks may take to meet. Raises ValueError if it does not parse."""
    name, text = variable("START_TIMEOUT")
    if text is None:
        return _START_TIMEOUT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:  # as in the core
        raise ValueError(f"{name}={text!r} does not parse: expected seconds")
    return seconds
