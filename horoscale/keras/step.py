"""Step: the interface that reduces the gradients of a training step, for any Keras backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

Apply = Callable[[list[Any]], Any]


class Step(Protocol):
    """What a DistributedOptimizer does with the gradients of a step."""

    def register_local(self, variables: Iterable[Any]) -> None:
        """Exclude the gradients of these variables from the reduction."""

    def __call__(self, gradients: list[Any], variables: Sequence[Any], apply: Apply) -> Any:
        """Reduce the gradients of the variables, and `apply` them if it is time."""

    def outside_of_graph(self, build: Callable[[], None]) -> None:
        """Make variables, which may not be part of a graph that is being made."""
