"""hvd.elastic for Keras: the state of a model, and callbacks that commit it in model.fit()."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from horoscale.common.surviving_sets import surviving
from horoscale.common.which_keras import backend, keras, to_numpy
from horoscale.elastic import DataPlan, ObjectState, ShardedStream, State, balance, status
from horoscale.elastic import run as run_without_framework
from horoscale.elastic.variables import KerasModelState

__all__ = [
    "CommitStateCallback",
    "DataPlan",
    "KerasState",
    "ObjectState",
    "ShardedStream",
    "State",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "balance",
    "run",
    "status",
    "surviving",
]

P = ParamSpec("P")
S = TypeVar("S", bound=State)
T = TypeVar("T")


def run(func: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Make a function survive ranks that fail, join and leave; see horoscale.elastic.run()."""
    if backend() == "tensorflow":
        from horoscale.tensorflow.elastic import run as run_of_tensorflow

        return run_of_tensorflow(func)
    if backend() == "jax":
        from horoscale.keras.jax_errors import with_our_errors

        return run_without_framework(with_our_errors(func))
    return run_without_framework(func)


class KerasState(KerasModelState):
    """Manages a model, its optimizer and objects to commit, restore and send.

        model.build(input_shape)
        state = hvd.elastic.KerasState(model, batch=0, epoch=0)

    Further keywords become attributes. sync() sends the current values of variables, and objects as
    they were last saved.
    """

    def to_array(self, variable: Any) -> Any:
        """Return the value of a variable as a NumPy array."""
        return to_numpy(variable)


class CommitStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Commits a state every `batches_per_commit` batches, and at the end of each epoch.

    Put it after the callbacks that change the state. Exceptions of commit() propagate out of fit().
    """

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        """Create the callback. Raises ValueError if `batches_per_commit` is less than 1."""
        if batches_per_commit < 1:
            raise ValueError(f"batches_per_commit={batches_per_commit} must be at least 1")
        super().__init__()
        self._state = state
        self._batches_per_commit = batches_per_commit
        self._left = batches_per_commit

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Restart the count, as all ranks do."""
        self._left = self._batches_per_commit

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Commit if it is time."""
        self._left -= 1
        if self._left == 0:
            self._commit()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Commit."""
        self._commit()

    def _commit(self) -> None:
        self._left = self._batches_per_commit
        _ = self.model  # with JAX, makes Keras write the trained values to the variables
        self._state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Stores the number of the batch in state.batch: 0 at the end of an epoch.

    The first epoch after a reset continues at state.batch: pass the number of remaining steps,
    steps_per_epoch - state.batch, to fit().
    """

    def __init__(self, state: Any) -> None:
        """Update this state, which must have a `batch`."""
        super().__init__()
        self._state = state
        self._first = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Continue from the state's batch."""
        self._first = self._state.batch

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Count a batch."""
        self._state.batch = self._first + batch

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Start at 0 in the next epoch."""
        self._first = 0
        self._state.batch = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Stores the number of the next epoch in state.epoch.

    fit() counts from 0 after each reset: pass it the number of remaining epochs, epochs -
    state.epoch.
    """

    def __init__(self, state: Any) -> None:
        """Update this state, which must have an `epoch`."""
        super().__init__()
        self._state = state
        self._first = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Continue from the state's epoch."""
        self._first = self._state.epoch

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Count a completed epoch."""
        self._state.epoch = self._first + epoch + 1
