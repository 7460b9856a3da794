"""ObjectState: a state of plain objects, kept as attributes."""

from __future__ import annotations

from typing import Any

from horoscale.elastic.data_plan import DataPlan
from horoscale.elastic.sharded_stream import ShardedStream
from horoscale.elastic.state import NumberedState


class ObjectState(NumberedState):
    """Holds objects that are committed, restored and sent to new ranks: its keyword arguments.

        state = ObjectState(epoch=0, batch=0)
        state.epoch += 1
        state.commit()

    Each keyword is an attribute from then on. One that has state_dict() and load_state_dict(), such
    as a learning rate scheduler, stays the same object; others are replaced. Arrays in dicts, lists
    and tuples are kept as bytes, and what is no plain type is pickled. sync() sends what was saved
    last.
    """

    def __init__(self, **kwargs: Any) -> None:
        """Keep the objects, as the first commit."""
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
    """Tell whether a value gives and takes its state by itself."""
    return (
        not isinstance(value, type)
        and callable(getattr(value, "state_dict", None))
        and callable(getattr(value, "load_state_dict", None))
    )


def _value_of(value: Any) -> Any:
    return value.state_dict() if is_stateful(value) else value
