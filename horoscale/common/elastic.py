"""Elastic training, which this version does not have: everything here says so when it is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn


def missing(name: str) -> NoReturn:
    """Raise NotImplementedError for a name of hvd.elastic."""
    raise NotImplementedError(
        f"hvd.elastic.{name} is not in this version of horoscale, which has no elastic training: "
        "save checkpoints, and start the job again from the last one when a rank fails"
    )


def run(func: Callable[..., Any]) -> NoReturn:
    """Raise NotImplementedError: it will make `func` survive changes of the job's ranks."""
    missing("run")


class ObjectState:
    """Will hold objects that are committed, restored and sent to new ranks."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Raise NotImplementedError."""
        missing(type(self).__name__)
