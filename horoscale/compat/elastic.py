"""The names that Horovod's programs import from horovod.common.elastic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from horoscale.elastic import ObjectState, State, run
from horoscale.elastic.state import State as _State

__all__ = ["ObjectState", "State", "run_fn"]


def run_fn(func: Callable[..., Any], reset: Callable[[], None]) -> Callable[..., Any]:
    """Return run(func), with `reset` added as the first of the state's reset callbacks."""
    again = run(func)

    def wrapper(state: _State, *args: Any, **kwargs: Any) -> Any:
        state._reset_callbacks.insert(0, reset)
        return again(state, *args, **kwargs)

    return wrapper
