"""VariablesState: a state that contains a framework's variables."""

from __future__ import annotations

from typing import Any

from horoscale.elastic.objects import ObjectState


class VariablesState(ObjectState):
    """Manages objects, and the values of variables that a subclass reads and assigns."""

    def read_variables(self) -> dict[str, list[Any]]:
        """Return the current values as NumPy arrays, in lists by owner."""
        raise NotImplementedError

    def assign_variables(self, values: dict[str, list[Any]]) -> None:
        """Assign the result of read_variables()."""
        raise NotImplementedError

    def _capture(self) -> Any:
        return {"variables": self.read_variables(), "objects": super()._capture()}

    def _load(self, value: Any) -> None:
        self.assign_variables(value["variables"])
        super()._load(value["objects"])

    def _refresh(self) -> None:
        latest = self._commits.latest()
        objects = super()._capture() if latest is None else latest.value("objects")
        self._commits.save({"variables": self.read_variables(), "objects": objects})


def check_built(model: Any) -> None:
    """Raise ValueError for a Keras model that has no weights yet."""
    if not model.built:
        raise ValueError(
            f"the model {model.name!r} is not built and has no weights to save: call "
            "model.build(input_shape), or the model with a batch, before creating the state"
        )


def build_optimizer(optimizer: Any, model: Any) -> None:
    """Create a Keras optimizer's variables, so that all ranks have them from the start."""
    if not getattr(optimizer, "built", False):
        optimizer.build(model.trainable_variables)


def variables_of(optimizer: Any) -> list[Any]:
    """Return the variables of a Keras 3 or Keras 2 optimizer."""
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)


class KerasModelState(VariablesState):
    """Manages a Keras model, its optimizer, and objects."""

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """Save the values as the first commit.

        `optimizer` defaults to the one with which the model was compiled. Raises ValueError if the
        model is not built.
        """
        check_built(model)
        self.model = model
        self.optimizer = optimizer if optimizer is not None else getattr(model, "optimizer", None)
        if self.optimizer is not None:
            build_optimizer(self.optimizer, model)
        super().__init__(**kwargs)

    def to_array(self, variable: Any) -> Any:
        """Return the value of a variable as a NumPy array."""
        return variable.numpy()

    def read_variables(self) -> dict[str, list[Any]]:
        """Return the values of the model's and the optimizer's variables."""
        return {name: list(map(self.to_array, ones)) for name, ones in self._variables().items()}

    def assign_variables(self, values: dict[str, list[Any]]) -> None:
        """Assign the result of read_variables()."""
        for name, variables in self._variables().items():
            for variable, value in zip(variables, values[name], strict=True):
                variable.assign(value)

    def _variables(self) -> dict[str, list[Any]]:
        found = {"model": list(self.model.weights)}
        if self.optimizer is not None:
            found["optimizer"] = variables_of(self.optimizer)
        return found
