"""hvd.elastic for TensorFlow: states of variables and models, and run(), which maps errors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import tensorflow as tf

from horoscale.common.exceptions import HorovodInternalError
from horoscale.common.surviving_sets import surviving
from horoscale.elastic import DataPlan, ObjectState, ShardedStream, State, balance, status
from horoscale.elastic import run as run_without_framework
from horoscale.elastic.variables import KerasModelState, VariablesState

__all__ = [
    "DataPlan",
    "ObjectState",
    "ShardedStream",
    "State",
    "TensorFlowKerasState",
    "TensorFlowState",
    "balance",
    "run",
    "status",
    "surviving",
]

P = ParamSpec("P")
S = TypeVar("S", bound=State)
T = TypeVar("T")


def run(func: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Make a function survive ranks that fail, join and leave; see horoscale.elastic.run().

    A horoscale operation that fails in a graph raises TensorFlow's UnknownError or AbortedError.
    run() handles these like HorovodInternalError.
    """

    @functools.wraps(func)
    def with_our_errors(state: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return func(state, *args, **kwargs)
        except (tf.errors.UnknownError, tf.errors.AbortedError) as error:
            if "horoscale" not in f"{error.message} {error.op and error.op.type}".lower():
                raise
            raise HorovodInternalError(error.message) from error

    return run_without_framework(with_our_errors)


class TensorFlowState(VariablesState):
    """Manages variables and objects to commit, restore and send to new ranks.

        state = hvd.elastic.TensorFlowState(variables=[weight, bias], step=0)

    Further keywords become attributes. sync() sends the current values of variables, and objects as
    they were last saved.
    """

    def __init__(
        self, variables: Sequence[Any] | None = None, session: Any = None, **kwargs: Any
    ) -> None:
        """Save the values as the first commit.

        Args:
            variables: the variables. None: tf.compat.v1.global_variables().
            session: for TensorFlow 1 graphs, the session that holds the variables' values.
            kwargs: objects.
        """
        self.session = session
        self.variables = list(tf.compat.v1.global_variables() if variables is None else variables)
        super().__init__(**kwargs)

    def read_variables(self) -> dict[str, list[Any]]:
        """Return the values of the variables."""
        if self.session is not None:
            return {"variables": list(self.session.run(self.variables))}
        return {"variables": [variable.numpy() for variable in self.variables]}

    def assign_variables(self, values: dict[str, list[Any]]) -> None:
        """Assign the result of read_variables()."""
        for variable, value in zip(self.variables, values["variables"], strict=True):
            if self.session is not None:
                variable.load(value, self.session)
            else:
                variable.assign(value)


class TensorFlowKerasState(KerasModelState):
    """Manages a tf.keras model, its optimizer and objects to commit, restore and send.

        model.build(input_shape)
        state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0, epoch=0)

    Further keywords become attributes. sync() sends the current values of variables, and objects as
    they were last saved.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
    ) -> None:
        """Save the values as the first commit.

        `optimizer` defaults to the one with which the model was compiled. `backend` is accepted for
        compatibility with Horovod. Raises ValueError if the model is not built.
        """
        super().__init__(model, optimizer, **kwargs)
