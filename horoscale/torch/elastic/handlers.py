"""Handlers that save, restore and send the values of a TorchState, by type."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from horoscale.elastic.membership import membership
from horoscale.elastic.snapshot import Snapshot
from horoscale.elastic.transfer import send_snapshot
from horoscale.torch.elastic.sampler import ElasticSampler


class StateHandler:
    """The interface for a value to save, restore and send. Subclasses override all methods."""

    def __init__(self, value: Any) -> None:
        """Handle a value."""
        self.value = value

    def set_value(self, value: Any) -> None:
        """Replace the value and save it."""
        self.value = value
        self.save()

    def save(self) -> None:
        """Save the current state of the value."""
        raise NotImplementedError

    def restore(self) -> None:
        """Restore the state of the last save()."""
        raise NotImplementedError

    def sync(self) -> None:
        """Send the state of the rank chosen by the job to all ranks. Collective."""
        raise NotImplementedError


class StateDictHandler(StateHandler):
    """Handles values with state_dict() and load_state_dict().

    TorchState keeps such values in its own numbered commits. save(), restore() and sync() are for
    programs that use a handler directly.
    """

    def __init__(self, value: Any) -> None:
        """Handle a value."""
        super().__init__(value)
        self._saved: Snapshot | None = None

    def capture(self) -> Any:
        """Return the current state."""
        return self.value.state_dict()

    def load(self, state: Any) -> None:
        """Restore a state returned by capture()."""
        self.value.load_state_dict(state)

    def set_value(self, value: Any) -> None:
        """Handle another value from now on."""
        self.value = value
        self._saved = None

    def save(self) -> None:
        """Save the current state."""
        self._saved = self._saved or Snapshot()
        self._saved.take(self.capture())

    def restore(self) -> None:
        """Restore the state of the last save(), if any."""
        if self._saved is not None:
            self.load(self._saved.value())

    def sync(self) -> None:
        """Send the current state of the rank chosen by the job to all ranks. Collective."""
        self.save()
        self._saved, _, _ = send_snapshot(self._saved, 0, membership().source)
        self.restore()


class ModelStateHandler(StateDictHandler):
    """Handles a torch.nn.Module: parameters and buffers."""


class OptimizerStateHandler(StateDictHandler):
    """Handles an optimizer, plain or from DistributedOptimizer()."""

    def load(self, state: Any) -> None:
        """Load the state, and clear gradients, which belong to an unfinished step."""
        self.value.load_state_dict(state)
        # Not zero_grad(), whose checks are for training loops.
        for group in self.value.__dict__["param_groups"]:
            for parameter in group["params"]:
                parameter.grad = None


class SamplerStateHandler(StateDictHandler):
    """Handles an ElasticSampler: distributes the rest of the epoch among the current ranks."""


Registry = list[tuple[type, type[StateHandler]]]

_registry: Registry = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> Registry:
    """Return the pairs of a type and its handler. The first match is used."""
    return list(_registry)


def set_handler_registry(registry: Iterable[tuple[type, type[StateHandler]]]) -> None:
    """Replace the pairs of get_handler_registry(), for states created afterwards."""
    global _registry
    _registry = list(registry)


def handler_of(value: Any) -> StateHandler | None:
    """Return a handler for the value, or None if no type matches."""
    for kind, handler in _registry:
        if isinstance(value, kind):
            return handler(value)
    return None
