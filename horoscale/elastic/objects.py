"""ObjectState: a state of plain objects, stored as attributes."""

from __future__ import annotations

from typing import Any

from horoscale.elastic.data_plan import DataPlan
from horoscale.elastic.sharded_stream import ShardedStream
from horoscale.elastic.state import NumberedState


class ObjectState(NumberedState):
    """Manages its keyword arguments: objects to commit, restore and send to new ranks.

        state = ObjectState(epoch=0, batch=0)
        state.epoch += 1
        state.commit()

    Each keyword becomes an attribute. An object with state_dict() and load_state_dict(), such as a
    learning rate scheduler, is updated in place; others are replaced. Arrays in dicts, lists and
    tuples are stored as bytes. Objects that are not of plain types are pickled. sync() sends the
    values that were saved last.
    """

    def __init__(self, **kwargs: Any) -> None:
        """Save the objects as the first commit."""
        self._names = sorted(kwargs)
        self.__dict__.update(kwargs)
        super().__init__()
        self.save()

    def _before_commit(self) -> None:
        for name in self._names:
            if isinstance(plan := getattr(self, name), DataPlan | ShardedStream):
                plan.before_commit()

    def _capture(self) -> Any:
        return {name: _value_of(getattr(self, name)) for name in self._names}

    def _load(self, value: Any) -> None:
        for name, one in value.items():
            present: Any = getattr(self, name, None)
            if is_stateful(present):
                present.load_state_dict(one)
            else:
                self.__dict__[name] = one


def is_stateful(value: Any) -> bool:
    """Return whether a value has state_dict() and load_state_dict()."""
    return (
        not isinstance(value, type)
        and callable(getattr(value, "state_dict", None))
        and callable(getattr(value, "load_state_dict", None))
    )


def _value_of(value: Any) -> Any:
    return value.state_dict() if is_stateful(value) else value
