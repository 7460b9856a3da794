"""Writes to runs of Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.trackers.tracker import Tracker


class WandB(Tracker):
    """Logs metrics of rank 0, and the runtime's, to Weights & Biases."""

    def __init__(
        self,
        run: Any = None,
        every: int = 50,
        process_set: ProcessSet = global_process_set,
        **options: Any,
    ) -> None:
        """Start a run on rank 0, unless one is given. Call hvd.init() before.

        Args:
            run: the result of wandb.init() on rank 0, which close() does not finish. It is not
                used on other ranks.
            every: the number of steps between two readings of the runtime's numbers. Metrics
                given to log() are always written.
            process_set: the ranks that train together. Their first rank writes.
            options: arguments of wandb.init(), such as project=, name= and config=, for a run that
                close() finishes.

        Raises:
            ImportError: the package wandb is missing on the rank that writes.
            TypeError: options are given together with a run.
            ValueError: as Tracker does.
        """
        if run is not None and options:
            raise TypeError(f"{', '.join(options)}: a run that has started takes no options")
        super().__init__(lambda: _Run(run, options), every, process_set)


class _Run:
    """A run: one of the user, or one that this object starts and finishes."""

    def __init__(self, run: Any, options: Mapping[str, Any]) -> None:
        self._is_own = run is None
        self._run = _start(options) if run is None else run

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        """Log the scalars of a step."""
        self._run.log(dict(scalars), step=step)

    def close(self, failed: bool) -> None:
        """Finish a run that was started here."""
        if self._is_own:
            self._run.finish(exit_code=int(failed))


def _start(options: Mapping[str, Any]) -> Any:
    try:
        import wandb
    except ImportError as error:
        raise ImportError(
            f"horoscale.trackers.WandB needs Weights & Biases ({error}): pip install wandb"
        ) from error
    return wandb.init(**options)
