"""VariablesState: a state of variables, in the frameworks that have them."""

from __future__ import annotations

from typing import Any

from horoscale.elastic.objects import ObjectState


class VariablesState(ObjectState):
    """Holds objects, and what a subclass reads from variables and assigns to them."""

    def read_variables(self) -> dict[str, list[Any]]:
        """Return the present values as arrays of numpy, in lists by what they belong to."""
        raise NotImplementedError

    def assign_variables(self, values: dict[str, list[Any]]) -> None:
        """Make values that read_variables() returned the present ones."""
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
    """Raise ValueError for a model of Keras that has no weights yet."""
    if not model.built:
        raise ValueError(
            f"the model {model.name!r} is not built, so that it has no weights to keep: call "
            "model.build(input_shape), or the model with a batch, before making the state"
        )


def build_optimizer(optimizer: Any, model: Any) -> None:
    """Give an optimizer of Keras its variables: all ranks have them from the start."""
    if not getattr(optimizer, "built", False):
        optimizer.build(model.trainable_variables)


def variables_of(optimizer: Any) -> list[Any]:
    """Return the variables of an optimizer of Keras 3 or 2."""
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)


class KerasModelState(VariablesState):
    """Holds a model of Keras, its optimizer, and objects."""

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """Keep the values, as the first commit.

        `optimizer` is the one that the model was compiled with, if None is given. Raises ValueError
        where the model is not built.
        """
        check_built(model)
        self.model = model
        self.optimizer = optimizer if optimizer is not None else getattr(model, "optimizer", None)
        if self.optimizer is not None:
            build_optimizer(self.optimizer, model)
        super().__init__(**kwargs)

    def to_array(self, variable: Any) -> Any:
        """Return the value of a variable as an array of numpy."""
        return variable.numpy()

    def read_variables(self) -> dict[str, list[Any]]:
        """Return the values of the model's and the optimizer's variables."""
        return {name: list(map(self.to_array, ones)) for name, ones in self._variables().items()}

    def assign_variables(self, values: dict[str, list[Any]]) -> None:
        """Assign values that read_variables() returned."""
        for name, variables in self._variables().items():
            for variable, value in zip(variables, values[name], strict=True):
                variable.assign(value)

    def _variables(self) -> dict[str, list[Any]]:
        found = {"model": list(self.model.weights)}
        if self.optimizer is not None:
            found["optimizer"] = variables_of(self.optimizer)
        return found
