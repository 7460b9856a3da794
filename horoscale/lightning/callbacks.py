"""Callbacks: the runtime's numbers in the logs, and checkpoints of elastic jobs."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as lightning

import horoscale.torch as hvd
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


class ElasticCheckpoints(lightning.Callback):  # type: ignore[misc]
    """Let ranks join and leave an elastic job right after a checkpoint, so that nothing is lost.

        @hvd.elastic.run
        def train(state):
            checkpoints = ModelCheckpoint("/shared/run", save_last=True, every_n_train_steps=100)
            callbacks = [checkpoints, horoscale.lightning.ElasticCheckpoints(state)]
            trainer = lightning.Trainer(strategy="horoscale", callbacks=callbacks)
            trainer.fit(Model(), data, ckpt_path="last")

        train(hvd.elastic.ObjectState())

    Without it the job continues after the loss of ranks, but nobody joins it.
    """

    def __init__(self, state: hvd.elastic.State) -> None:
        """Take the state of hvd.elastic.run, which is committed after each checkpoint.

        The training itself is in the checkpoint; the state may hold other objects.
        """
        self._state = state

    def setup(
        self, trainer: lightning.Trainer, module: lightning.LightningModule, stage: str
    ) -> None:
        """Check the strategy; raise TypeError for one that is not HoroscaleStrategy."""
        if not isinstance(trainer.strategy, HoroscaleStrategy):
            raise TypeError('ElasticCheckpoints needs a Trainer with strategy="horoscale"')

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Check that all ranks begin at the same step.

        Raises RuntimeError where they have found different checkpoints.
        """
        steps = hvd.allgather_object(trainer.global_step, process_set=trainer.strategy.process_set)
        if len(set(steps)) > 1:
            raise RuntimeError(
                f"the ranks continue from different steps, by rank: {steps}. Save checkpoints in a "
                "folder that all hosts share"
            )

    def on_train_batch_start(
        self, trainer: lightning.Trainer, module: lightning.LightningModule, *batch: Any
    ) -> None:
        """Commit, where a checkpoint was saved since the batch before.

        Raises HostsUpdatedInterrupt, which hvd.elastic.run expects, if ranks are to change.
        """
        if trainer.strategy.take_saved():
            self._state.commit()
