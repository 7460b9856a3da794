"""A callback that logs what the runtime has counted."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as lightning

import horoscale.common as hvd


class RuntimeMetrics(lightning.Callback):  # type: ignore[misc]
    """Logs numbers of hvd.metrics() on rank 0, to the Trainer's loggers, TensorBoard's for one."""

    def __init__(self, every_n_steps: int = 50) -> None:
        """Log once in so many steps of an optimizer.

        Raises:
            ValueError: every_n_steps is not positive.
        """
        if every_n_steps < 1:
            raise ValueError(f"every_n_steps={every_n_steps}: it has to be 1 or more")
        self._every = every_n_steps

    def on_train_batch_end(
        self, trainer: lightning.Trainer, module: lightning.LightningModule, *batch: Any
    ) -> None:
        """Log the counters of the job, as horoscale/<name>."""
        step = trainer.global_step
        if not trainer.is_global_zero or step % self._every or not hvd.is_initialized():
            return
        counters = {
            f"horoscale/{name}": float(value)
            for name, value in hvd.metrics().items()
            if isinstance(value, (int, float))
        }
        for logger in trainer.loggers:
            logger.log_metrics(counters, step)
