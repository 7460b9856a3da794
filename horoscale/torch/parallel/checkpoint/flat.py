"""Parameters that are divided by elements (ZeRO): the ranges that this rank owns.

Protocols describe them, so that any implementation of such a division can be saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import nn

from horoscale.torch.parallel.checkpoint.layout import Layout
from horoscale.torch.parallel.checkpoint.model_tensor import ModelTensor

_ATTRIBUTE = "_horoscale_zero"  # of a module with such parameters


class Owned(Protocol):
    """A range of a parameter's elements, and its location in this rank's memory."""

    @property
    def name(self) -> str:
        """The parameter's name."""

    @property
    def begin(self) -> int:
        """The first element."""

    @property
    def end(self) -> int:
        """The end of the range (exclusive)."""

    @property
    def offset(self) -> int:
        """The offset of the first element in the memory."""


class FlatShards(Protocol):
    """Concatenated parameters, of which this rank owns a part.

    Attributes:
        parameters: the parameters.
        places: their names, as in `owned()`, in the same order.
        master: the memory of this rank's part.
    """

    parameters: list[nn.Parameter]
    places: Sequence[Any]
    master: torch.Tensor

    def owned(self) -> Iterable[Owned]:
        """The ranges that this rank owns."""


class Sharded(Protocol):
    """The shards of a module's parameters."""

    trained: list[FlatShards]
    frozen: list[FlatShards]

    def publish(self) -> None:
        """Send the values of the masters to all ranks. Collective."""


class Run(Protocol):
    """An optimizer's tensor that is a part of a master.

    Attributes:
        begin: its offset in the master.
        owned: the ranges of parameters in it.
        tensor: the tensor that the optimizer has.
    """

    begin: int
    owned: Sequence[Owned]
    tensor: nn.Parameter


def sharded_in(module: nn.Module) -> list[Sharded]:
    """Return the shards of a module and of its submodules."""
    return [one.__dict__[_ATTRIBUTE] for one in module.modules() if _ATTRIBUTE in one.__dict__]


def publish(module: nn.Module) -> None:
    """Send loaded values to all ranks. Collective if the module has divided parameters."""
    for one in sharded_in(module):
        one.publish()


def as_owned(module: nn.Module, tensors: Sequence[ModelTensor]) -> list[ModelTensor]:
    """Return the tensors of a module, with this rank's ranges of those that are divided."""
    ranges: dict[int, tuple[torch.Tensor, int, int]] = {}
    for sharded in sharded_in(module):
        for shards in (*sharded.trained, *sharded.frozen):
            parameters = by_name(shards)
            nothing = shards.master[:0]
            ranges |= {id(one): (nothing, 0, 0) for one in shards.parameters}
            for owned in shards.owned():
                memory = shards.master[owned.offset :][: owned.end - owned.begin]
                ranges[id(parameters[owned.name])] = (memory, owned.begin, owned.end)
    return [
        replace(
            one, tensor=ranges[id(one.of)][0], layout=one.layout.of_range(*ranges[id(one.of)][1:])
        )
        if id(one.of) in ranges
        else one
        for one in tensors
    ]


def by_name(shards: FlatShards) -> dict[str, nn.Parameter]:
    """Return the parameters of shards by name."""
    return {
        place.name: parameter
        for place, parameter in zip(shards.places, shards.parameters, strict=True)
    }


class RunState(MutableMapping[str, Any]):
    """An optimizer's state for one parameter, within its state for a run."""

    def __init__(self, optimizer: Any, run: Run, owned: Owned) -> None:
        """Create a view of the elements of `owned`."""
        self._optimizer = optimizer
        self._run = run
        self._tensor = run.tensor
        begin = owned.offset - run.begin
        self._range = slice(begin, begin + owned.end - owned.begin)
        self._numel = owned.end - owned.begin

    def __getitem__(self, key: str) -> Any:
        value = self._state[key]
        is_divided = isinstance(value, torch.Tensor) and value.shape == self._tensor.shape
        return value[self._range] if is_divided else value

    def __setitem__(self, key: str, value: Any) -> None:
        state = self._optimizer.state[self._tensor]
        if not isinstance(value, torch.Tensor) or value.shape != (self._numel,):
            state[key] = value
            return
        if key not in state:
            on_disk = self._on_disk(key, value.dtype)
            state[key] = (
                torch.zeros(self._tensor.shape, dtype=value.dtype, device=value.device)
                if on_disk is None
                else on_disk
            )
        if state[key][self._range].data_ptr() != value.data_ptr():
            state[key][self._range] = value

    def __delitem__(self, key: str) -> None:
        del self._state[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)

    def memory(self, key: str, dtype: torch.dtype) -> torch.Tensor | None:
        """Return the memory of a state tensor for the parameter's elements, if it is offloaded.

        Values are then read directly into it, not all of them into memory at once.
        """
        whole = self._on_disk(key, dtype)
        return None if whole is None else whole[self._range]

    def _on_disk(self, key: str, dtype: torch.dtype) -> torch.Tensor | None:
        streaming = getattr(self._optimizer, "streaming", None)
        if streaming is None:
            return None
        found: torch.Tensor = streaming.view(self._run, key, dtype)
        return found

    @property
    def _state(self) -> dict[str, Any]:
        found: dict[str, Any] = self._optimizer.state.get(self._tensor, {})
        return found


def layout_of(layout: Layout, owned: Owned) -> Layout:
    """Return the layout of a run's part of a parameter with this layout."""
    return replace(layout, flat=None).of_range(owned.begin, owned.end)
