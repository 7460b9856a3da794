"""This rank's activity in numbers, part of its report every second."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from horoscale._core import HorovodInternalError
from horoscale._rank_ranges import rank_ranges
from horoscale.common import job

_log = logging.getLogger("horoscale")
_MOST_SETS = 8
_MOST_CHARACTERS = 100
_INTERVAL_S = 1.0


class Activity:
    """The compute and wait time since the current job began, and the state of its process sets."""

    def __init__(self) -> None:
        """Create the activity outside any job."""
        self._runtime: Callable[[], object] = lambda: None  # not the object, which owns memory
        self._began = 0.0

    def read(self) -> dict[str, Any]:
        """Return JSON values; empty between two jobs. Any thread may call this, one at a time."""
        return self.read_with_metrics()[0]

    def read_with_metrics(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the same values, and the metrics from which they were computed."""
        if not job.is_initialized() or job.is_standby():
            return {}, {}
        try:
            runtime = job.current_runtime()
            metrics, ranks = runtime.metrics(), runtime.process_sets()
        except (ValueError, HorovodInternalError):  # the job has ended meanwhile
            return {}, {}
        now, waiting = time.monotonic(), metrics["waiting_seconds"]
        if runtime is not self._runtime():
            self._runtime, self._began = weakref.ref(runtime), now - waiting
        values = {
            "computing_seconds": max(0.0, now - self._began - waiting),
            "waiting_seconds": waiting,
            "sets": _sets(metrics, ranks),
        }
        return values, metrics


class Reporter:
    """A thread that calls a function once a second, independently of other threads.

    The function may run user code, such as a property of the state. An exception is logged once,
    and the function is called again a second later.
    """

    def __init__(self, report: Callable[[], None]) -> None:
        """Start the thread."""
        self._report = report
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="horoscale-report", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop the thread."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        logged = False
        while not self._ended.wait(_INTERVAL_S):
            try:
                self._report()
            except Exception as error:
                if not logged:
                    _log.warning(
                        "cannot report this rank's progress: %s: %s (logged once)",
                        type(error).__name__,
                        error,
                    )
                logged = True


def ranks_text(ranks: Sequence[int]) -> str:
    """Return "0-3, 8" for 0, 1, 2, 3 and 8; a long list ends in "…"."""
    return _cut(rank_ranges(sorted(ranks)).replace(",", ", "))


def _sets(metrics: dict[str, Any], ranks: dict[int, list[int]]) -> list[dict[str, Any]]:
    """Return the global set and the other sets that have waited longest."""
    order = sorted(
        ((int(key), one) for key, one in metrics["progress"].items()),
        key=lambda pair: (pair[0] != 0, -pair[1]["pending_seconds"], pair[0]),
    )
    return [
        {
            "set": set_id,
            "ranks": ranks_text(ranks.get(set_id, [])),
            "operations": metrics["process_sets"][str(set_id)]["operations"],
            "last_operation": _cut(one["last_operation"]),
            "executing": _cut(one["executing"]),
            "pending": one["pending"],
            "pending_operation": _cut(one["pending_operation"]),
            "pending_seconds": one["pending_seconds"],
        }
        for set_id, one in order[:_MOST_SETS]
    ]


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 1] + "…"
