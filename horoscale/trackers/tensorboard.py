"""Writes to TensorBoard's event files, with the package tensorboard alone."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.trackers.tracker import Tracker

_FLUSH_S = 10  # how much of the curves is lost if the process is killed


class TensorBoard(Tracker):
    """Logs metrics of rank 0, and the runtime's, to TensorBoard."""

    def __init__(
        self,
        log_dir: str | os.PathLike[str],
        every: int = 50,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """Create an event file in `log_dir` on rank 0. Call hvd.init() before.

        Args:
            log_dir: the directory, which is created if it is missing. Process sets that train
                models of their own need one each.
            every: the number of steps between two readings of the runtime's numbers. Metrics
                given to log() are always written.
            process_set: the ranks that train together. Their first rank writes.

        Raises:
            ImportError: the package tensorboard is missing on the rank that writes.
            ValueError: as Tracker does.
        """
        super().__init__(lambda: _EventFile(os.fspath(log_dir)), every, process_set)


class _EventFile:
    """An event file, in which each step has all of its scalars in one event."""

    def __init__(self, log_dir: str) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise ImportError(
                f"horoscale.trackers.TensorBoard needs TensorBoard ({error}): "
                "pip install tensorboard"
            ) from error
        self._event, self._summary = Event, Summary
        self._file = EventFileWriter(log_dir, flush_secs=_FLUSH_S)

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        """Add an event. A thread of TensorBoard writes it soon."""
        values = [
            self._summary.Value(tag=name, simple_value=value) for name, value in scalars.items()
        ]
        self._file.add_event(
            self._event(wall_time=time.time(), step=step, summary=self._summary(value=values))
        )

    def close(self, failed: bool) -> None:
        """Write all events."""
        self._file.close()
