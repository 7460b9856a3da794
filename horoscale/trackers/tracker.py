"""What all trackers do: one rank writes, with the numbers of the runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Protocol

from horoscale.common.arguments import set_id
from horoscale.common.basics import rank
from horoscale.common.job import is_initialized, is_standby
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.trackers.runtime_scalars import RuntimeScalars


class Sink(Protocol):
    """Where a tracker writes."""

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        """Write the scalars of a step. There is at least one."""

    def close(self, failed: bool) -> None:
        """Write what is pending, and end. `failed`: because of an exception."""


class Tracker:
    """Logs metrics on the first rank of a process set, together with RuntimeScalars.

    Every rank makes the same calls. They are local and do not communicate. If elastic training
    makes another rank the first one, that rank opens a sink and continues.
    """

    def __init__(
        self,
        open_sink: Callable[[], Sink],
        every: int = 50,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """Call `open_sink` if this rank is the first one. Call hvd.init() before.

        Args:
            open_sink: returns what to write to. It is called only on the rank that writes.
            every: the number of steps between two readings of the runtime's numbers. Metrics
                given to log() are always written.
            process_set: the ranks that train together. Their first rank writes, and ranks outside
                the set do nothing.

        Raises:
            ValueError: every is not positive, hvd.init() was not called, or the process set is not
                registered.
        """
        self._open_sink = open_sink
        self._scalars = RuntimeScalars(every, process_set)
        self._process_set = process_set
        self._first = False
        self._sink: Sink | None = None
        self._closed = False
        rank()  # raises before hvd.init()
        self._writer()

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Write metrics of this rank, and add the runtime's if it is time. No-op on other ranks.

        After hvd.shutdown(), the same rank writes the metrics alone.

        Args:
            metrics: numbers by name, or arrays and tensors of one element. They are converted only
                where they are written. Others raise there what their type raises.
            step: the number of the step, which counts up.

        Raises:
            ValueError: the tracker is closed, or the process set is no longer registered.
        """
        if self._closed:
            raise ValueError(f"this {type(self).__name__} tracker is closed")
        writer = self._writer()
        if writer is None:
            return
        scalars = self._scalars.read(step)
        scalars |= {name: _number(value) for name, value in metrics.items()}
        if scalars:
            writer.write(scalars, step)

    def close(self, failed: bool = False) -> None:
        """Write what is pending, and end. Further calls do nothing.

        Args:
            failed: whether training has failed, which Weights & Biases shows.
        """
        self._closed = True
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.close(failed)

    def _writer(self) -> Sink | None:
        """Return the sink if this rank is the first one or, after the job, was the first one."""
        if is_initialized() and not is_standby():
            self._first = self._is_first()
        if not self._first:
            return None
        if self._sink is None:
            self._sink = self._open_sink()
        return self._sink

    def _is_first(self) -> bool:
        if self._process_set.included() is False:
            return False
        set_id(self._process_set)  # raises if it is not registered
        return self._process_set.rank() == 0

    def __enter__(self) -> Tracker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        is_exit = isinstance(error, SystemExit) and not error.code  # such as of a drained rank
        self.close(failed=error is not None and not is_exit)


def _number(value: Any) -> float:
    # item(): PyTorch warns about float() of a tensor that needs a gradient, such as a loss.
    return float(value.item() if hasattr(value, "item") else value)
