"""Step: the interface that reduces the gradients of a training step, for any Keras backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

Apply = Callable[[list[Any]], Any]


class Step(Protocol):
    """Processes the gradients of a step for a DistributedOptimizer."""

    def register_local(self, variables: Iterable[Any]) -> None:
        """Exclude the gradients of these variables from the reduction."""

    def __call__(self, gradients: list[Any], variables: Sequence[Any], apply: Apply) -> Any:
        """Reduce the gradients of the variables. `apply` them on the last pass of a step."""

    def outside_of_graph(self, build: Callable[[], None]) -> None:
        """Call `build`, which creates variables, outside any graph that is being traced."""
