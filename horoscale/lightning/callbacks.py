"""A callback that logs the runtime's numbers."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as lightning

from horoscale.lightning.strategy import HoroscaleStrategy
from horoscale.trackers import RuntimeScalars


class RuntimeMetrics(lightning.Callback):  # type: ignore[misc]
    """Logs numbers of hvd.metrics() on rank 0, to the Trainer's loggers, TensorBoard's for one.

    The numbers are those of horoscale.trackers.RuntimeScalars, for the strategy's process set.
    """

    def __init__(self, every_n_steps: int = 50) -> None:
        """Log once in so many steps of an optimizer.

        Raises:
            ValueError: every_n_steps is not positive.
        """
        self._scalars = RuntimeScalars(every_n_steps)

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Use the process set of the strategy."""
        if isinstance(trainer.strategy, HoroscaleStrategy):
            self._scalars.process_set = trainer.strategy.process_set

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: lightning.LightningModule, *batch: Any
    ) -> None:
        """Log the numbers, as horoscale/<name>."""
        step = trainer.global_step
        scalars = self._scalars.read(step) if trainer.is_global_zero else {}
        if scalars:
            for logger in trainer.loggers:
                logger.log_metrics(scalars, step)
