"""TorchState: models, optimizers, samplers and plain objects in one state."""

from __future__ import annotations

from typing import Any

import torch

from horoscale.elastic.objects import ObjectState
from horoscale.torch.elastic.handlers import StateDictHandler, StateHandler, handler_of
from horoscale.torch.elastic.sampler import ElasticSampler


class TorchState(ObjectState):
    """Manages models, optimizers, samplers and objects to commit, restore and send.

        state = TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0)

    Each argument becomes an attribute. Values of types that have a handler are managed by it:
    torch.nn.Module, torch.optim.Optimizer and ElasticSampler, any number of each with any names
    (see set_handler_registry()). All others are handled as in ObjectState. Assigning another model
    saves it. sync() sends the current values of models, optimizers and samplers, and the saved
    values of objects.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        """Save the objects as the first commit."""
        kwargs |= {
            name: value
            for name, value in (("model", model), ("optimizer", optimizer))
            if value is not None
        }
        self._handlers: dict[str, StateHandler] = {}
        for name in sorted(kwargs):
            handler = handler_of(kwargs[name])
            if handler is not None:
                self._handlers[name] = handler
        objects = {name: one for name, one in kwargs.items() if name not in self._handlers}
        super().__init__(**objects)

    def __getattr__(self, name: str) -> Any:
        handlers = self.__dict__.get("_handlers", {})
        if name in handlers:
            return handlers[name].value
        raise AttributeError(f"this state has no {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        handlers = self.__dict__.get("_handlers", {})
        if name in handlers:
            handlers[name].set_value(value)
            self.save()
        else:
            super().__setattr__(name, value)

    def save(self) -> None:
        """Save the current values for restore()."""
        super().save()
        for handler in self._foreign():
            handler.save()

    def restore(self) -> None:
        """Restore the values of the last save()."""
        super().restore()
        for handler in self._foreign():
            handler.restore()

    def sync(self) -> None:
        """Send the values of the rank chosen by the job to all ranks. Collective."""
        super().sync()
        for handler in self._foreign():
            handler.sync()

    def reset(self) -> None:
        """Redistribute the rest of the data among the current ranks."""
        for handler in self._handlers.values():
            if isinstance(handler.value, ElasticSampler):
                handler.value.reset()

    def _foreign(self) -> list[StateHandler]:
        """Return the handlers that store what they save themselves."""
        return [one for one in self._handlers.values() if not isinstance(one, StateDictHandler)]

    def _capture(self) -> Any:
        return {"handlers": self._captured_by_handlers(), "objects": super()._capture()}

    def _captured_by_handlers(self) -> dict[str, Any]:
        return {
            name: handler.capture()
            for name, handler in self._handlers.items()
            if isinstance(handler, StateDictHandler)
        }

    def _load(self, value: Any) -> None:
        for name, state in value["handlers"].items():
            handler = self._handlers[name]
            assert isinstance(handler, StateDictHandler)
            handler.load(state)
        super()._load(value["objects"])

    def _go_back(self, number: int) -> None:
        super()._go_back(number)
        for handler in self._foreign():
            handler.restore()

    def _refresh(self) -> None:
        latest = self._commits.latest()
        objects = super()._capture() if latest is None else latest.value("objects")
        self._commits.save({"handlers": self._captured_by_handlers(), "objects": objects})
