"""Which numbers of hvd.metrics() are logged during training, and under which names."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from horoscale.common.arguments import set_id
from horoscale.common.job import current_runtime, is_initialized, is_standby
from horoscale.common.process_sets import ProcessSet, global_process_set

PREFIX = "horoscale/"
# Counters, under their names in hvd.metrics().
_OF_RANK = ("waiting_seconds", "data_bytes_sent", "network_bytes_sent")
_OF_SET = ("operations", "bytes", "cache_misses", "negotiate_seconds", "execute_seconds")
_ALSO_PER_SECOND = ("operations", "bytes", "network_bytes_sent")


class RuntimeScalars:
    """Reads hvd.metrics() as a flat dictionary of the numbers worth a curve.

    Counters have the value since hvd.init(). Rates and times of steps are about the interval since
    the last reading of the same job, and the first reading has none. docs/how_to/track_training.md
    lists all names. They begin with "horoscale/".

    Attributes:
        process_set: the process set whose counters are read.
    """

    def __init__(self, every: int = 50, process_set: ProcessSet = global_process_set) -> None:
        """Read at most once in `every` steps.

        Raises:
            ValueError: every is not positive.
        """
        if every < 1:
            raise ValueError(f"the steps between two readings are {every}, and must be 1 or more")
        self.process_set = process_set
        self._every = every
        self._runtime: Callable[[], object] = lambda: None  # a weak reference: runtimes own memory
        self._last_step = 0
        self._last: Reading | None = None

    def read(self, step: int) -> dict[str, float]:
        """Return the scalars by name. Local, takes microseconds.

        The result is empty less than `every` steps after the last reading, and in a process that
        belongs to no job. A lower step than before, or a new job, starts again.

        Raises:
            ValueError: the process set is not registered, or this rank is not in it.
        """
        if not is_initialized() or is_standby():
            return {}
        runtime = current_runtime()
        if runtime is not self._runtime():
            self._runtime, self._last = weakref.ref(runtime), None
        if self._last is not None and 0 <= step - self._last_step < self._every:
            return {}
        reading = read(runtime.metrics(), set_id(self.process_set), time.monotonic())
        values = reading.counters | (rates(self._last, reading) if self._last else {})
        self._last_step, self._last = step, reading
        return {PREFIX + name: value for name, value in values.items()}


class Reading(NamedTuple):
    """What was read at a time of the monotonic clock, in seconds."""

    time: float
    counters: dict[str, float]
    steps: dict[str, float]


def read(metrics: dict[str, Any], process_set_id: int, at: float) -> Reading:
    """Select counters of hvd.metrics()."""
    of_set = metrics["process_sets"][str(process_set_id)]
    counters = {name: float(metrics[name]) for name in _OF_RANK}
    counters |= {name: float(of_set[name]) for name in _OF_SET}
    return Reading(at, counters, metrics["steps"])


def rates(before: Reading, after: Reading) -> dict[str, float]:
    """Return what has happened between two readings, per second and per completed step."""
    seconds = max(after.time - before.time, 1e-9)
    values = {
        f"{name}_per_second": (after.counters[name] - before.counters[name]) / seconds
        for name in _ALSO_PER_SECOND
    }
    steps = {name: value - before.steps[name] for name, value in after.steps.items()}
    if steps["count"] > 0 and steps["seconds"] > 0:
        values["step_seconds"] = steps["seconds"] / steps["count"]
        values["step_exposed_fraction"] = steps["exposed_seconds"] / steps["seconds"]
        values["step_waiting_fraction"] = steps["waiting_seconds"] / steps["seconds"]
    return values
