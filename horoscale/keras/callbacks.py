"""Callbacks for Keras' fit() on several ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from horoscale import common
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.common.which_keras import IS_LEGACY, backend, keras
from horoscale.keras import legacy_optimizer
from horoscale.keras.values import broadcast_variables
from horoscale.numpy.reductions import allreduce
from horoscale.trackers import Tracker

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "TrackerCallback",
]

# The name under which Keras' own callbacks report it, so that a log has it once.
_RATE_IN_LOGS = "lr" if IS_LEGACY else "learning_rate"


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Broadcasts the root's model and optimizer to all ranks when training begins."""

    def __init__(
        self,
        root_rank: int,
        device: str = "",
        local_variables: Iterable[Any] | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """Broadcast from `root_rank`, a global rank.

        Args:
            root_rank: the global rank of the sender.
            device: accepted for compatibility with Horovod.
            local_variables: variables of the model, such as those of local layers, that are not
                broadcast. The optimizer's state for them is broadcast.
            process_set: the ranks that take part.
        """
        super().__init__()
        self._root_rank = root_rank
        self._local = {id(variable): variable for variable in local_variables or ()}
        self._process_set = process_set
        self._done = False

    def register_local_var(self, variable: Any) -> None:
        """Exclude another variable from the broadcast."""
        self._local[id(variable)] = variable

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Broadcast before the first step, unless the first input has yet to build the model."""
        if not self.model.built:
            return
        _build(self.model.optimizer, self.model.trainable_variables)
        self._broadcast()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Broadcast the variables that the first step has built."""
        self._broadcast()

    def _broadcast(self) -> None:
        if self._done or not self._process_set.included():
            return
        if backend() == "jax":
            self.model.jax_state_sync()  # during a step, the variables do not contain the values
        optimizer = self.model.optimizer
        variables = [
            *(one for one in self.model.weights if id(one) not in self._local),
            *(optimizer.variables() if IS_LEGACY else optimizer.variables),
        ]
        broadcast_variables(variables, self._root_rank, self._process_set)
        self._done = True


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Averages the metrics of an epoch over the ranks.

    Callbacks after this one in the list, such as ReduceLROnPlateau or EarlyStopping, see the
    averages and make the same decisions on all ranks.
    """

    def __init__(self, device: str = "", process_set: ProcessSet = global_process_set) -> None:
        """`device` is accepted for compatibility with Horovod."""
        super().__init__()
        self._process_set = process_set

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Replace the metrics by their averages."""
        if not logs or not self._process_set.included():
            return
        names = sorted(name for name, value in logs.items() if np.ndim(value) == 0)
        values = np.array([float(logs[name]) for name in names], np.float64)
        name = f"metrics.{'.'.join(names)}"  # in errors, shows ranks with other metrics
        averages = allreduce(values, name=name, process_set=self._process_set)
        logs.update(zip(names, averages.tolist(), strict=True))


class LearningRateScheduleCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Multiplies the initial learning rate by a factor that depends on the epoch."""

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        """Schedule the epochs from `start_epoch` to `end_epoch`, exclusive.

        Args:
            initial_lr: the learning rate to multiply.
            multiplier: a number, or a function from the epoch to a number. With staircase=True, a
                number is used directly; otherwise it is raised to the power of the epochs since
                `start_epoch`.
            start_epoch: the first epoch.
            end_epoch: the first epoch that is not scheduled. None: no end.
            staircase: whether to change the rate once per epoch, or else in each batch, with
                fractional epochs.
            momentum_correction: whether to scale the momentum with the learning rate in the step in
                which the rate changes (Goyal et al., Accurate, Large Minibatch SGD, 2017). Has no
                effect if Keras has compiled the momentum in as a constant: use the torch backend or
                run_eagerly=True.
            steps_per_epoch: batches per epoch, for staircase=False. None: as determined by fit().
        """
        super().__init__()
        self._initial_lr = initial_lr
        self._start_epoch = start_epoch
        self._end_epoch = math.inf if end_epoch is None else end_epoch
        self._staircase = staircase
        self._momentum_correction = momentum_correction
        self._steps_per_epoch = steps_per_epoch
        self._multiplier = multiplier
        self._epoch = 0
        self._momentum: float | None = None  # to restore after the batch

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Determine the number of batches in an epoch."""
        if not self._staircase and not self._steps_per_epoch:
            self._steps_per_epoch = self.params.get("steps")
            if not self._steps_per_epoch:
                raise ValueError(
                    f"{type(self).__name__} needs steps_per_epoch=: fit() does not know it"
                )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Record the epoch."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Set the learning rate if it changes in this batch."""
        if not self._start_epoch <= self._epoch < self._end_epoch:
            return
        if self._staircase:
            if batch == 0:
                self._adjust(self._epoch)
        else:
            assert self._steps_per_epoch
            self._adjust(self._epoch + batch / self._steps_per_epoch)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Restore the momentum."""
        if self._momentum is not None:
            _innermost(self.model.optimizer).momentum = self._momentum
            self._momentum = None

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Add the learning rate to the metrics."""
        if logs is not None:
            logs[_RATE_IN_LOGS] = float(self.model.optimizer.learning_rate)

    def _factor(self, epoch: float) -> float:
        if callable(self._multiplier):
            return self._multiplier(epoch)
        if self._staircase:
            return self._multiplier
        return float(self._multiplier ** (epoch - self._start_epoch))

    def _adjust(self, epoch: float) -> None:
        optimizer = _innermost(self.model.optimizer)
        before = float(optimizer.learning_rate)
        after = self._initial_lr * self._factor(epoch)
        optimizer.learning_rate = after
        eager = backend() == "torch" or self.model.run_eagerly
        momentum = getattr(optimizer, "momentum", None)
        if self._momentum_correction and eager and momentum and before:
            self._momentum = momentum
            optimizer.momentum = momentum * after / before


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Increases the learning rate from that of one rank to `initial_lr` in the first epochs.

    N ranks process N times the batch and use N times the learning rate, which is too large at the
    beginning of training (Goyal et al., Accurate, Large Minibatch SGD, 2017).
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        """Start with initial_lr / hvd.size(). `verbose`: rank 0 prints the end of the warm-up.

        The other arguments are those of LearningRateScheduleCallback.
        """

        def multiplier(epoch: float) -> float:
            size = common.size() or 1
            # The full rate is reached at the end of the last batch of the last epoch.
            assert self._steps_per_epoch
            epoch += 1.0 / self._steps_per_epoch
            return 1.0 / size * (epoch * (size - 1) / warmup_epochs + 1)

        super().__init__(
            initial_lr,
            multiplier,
            start_epoch=0,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self._verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Print the end of the warm-up."""
        super().on_epoch_end(epoch, logs)
        if epoch == self._end_epoch - 1 and self._verbose > 0 and common.rank() == 0:
            rate = float(self.model.optimizer.learning_rate)
            print(f"\nEpoch {epoch + 1}: the learning rate is warmed up to {rate:g}.")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """Saves the model on rank 0 after each epoch that is the best so far.

    Put it after MetricAverageCallback, so that "best" refers to the average over all ranks.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        filepath: str = "best.keras",
    ) -> None:
        """Take the arguments of keras.callbacks.ModelCheckpoint; save_best_only is True."""
        super().__init__(
            filepath,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            mode=mode,
            save_freq=save_freq,
        )

    def _save_model(self, *args: Any, **kwargs: Any) -> None:
        if common.rank() == 0:
            super()._save_model(*args, **kwargs)


class TrackerCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Logs the metrics of each epoch and the runtime's numbers, with a horoscale.trackers.Tracker.

    All ranks have this callback, and one of them writes. Put it after MetricAverageCallback, so
    that the metrics are averages over the ranks.
    """

    def __init__(self, tracker: Tracker) -> None:
        """`tracker`: such as TensorBoard or WandB. Close it after training."""
        super().__init__()
        self._tracker = tracker
        self._step = 0
        self._batch = -1

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Count batches from the optimizer's iterations, if it has done more."""
        self._step = max(self._step, int(_innermost(self.model.optimizer).iterations))

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Start with the first batch of the epoch."""
        self._batch = -1

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Count the batches since the last call, and log the runtime's numbers if it is time."""
        self._step += batch - self._batch  # more than 1 with steps_per_execution
        self._batch = batch
        self._tracker.log({}, self._step)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Log the metrics of the epoch."""
        metrics = {name: value for name, value in (logs or {}).items() if np.ndim(value) == 0}
        self._tracker.log(metrics, self._step)


def _innermost(optimizer: Any) -> Any:
    """Return the optimizer that has the learning rate and the momentum."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def _build(optimizer: Any, variables: list[Any]) -> None:
    if IS_LEGACY:
        legacy_optimizer.build(optimizer, variables)
    elif not optimizer.built:
        optimizer.build(variables)
