"""Steps of an optimizer whose tensors are on a disk: piece by piece, beside reading and writing.

While the step of one piece computes, the next one is read and the last one is written.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from horoscale.torch.parallel.offload import Area, Store, Transfer
from horoscale.torch.parallel.offload.direct import aligned
from horoscale.torch.parallel.offload.store import CHUNK_BYTES
from horoscale.torch.parallel.zero.bucket import Bucket
from horoscale.torch.parallel.zero.elementwise import is_elementwise
from horoscale.torch.parallel.zero.flat import FlatShards
from horoscale.torch.parallel.zero.runs import Run
from horoscale.torch.parallel.zero.sharded import Sharded

# Beside the keys of the optimizer's state, which are strings.
_VALUES, _GRADIENT, _ROUNDED = range(3)


class Stepped(Protocol):
    """What is needed of a ZeroOptimizer."""

    sharded: Sharded
    runs: list[list[Run]]
    state: Any
    param_groups: list[dict[str, Any]]


class _Part(NamedTuple):
    """What a piece has of a run: elements of its FlatShards."""

    run: Run
    group: int
    begin: int
    end: int


class _Piece(NamedTuple):
    """Neighboring elements of a FlatShards, which are in memory at once."""

    shards: FlatShards
    begin: int
    end: int
    parts: list[_Part]


@dataclass
class _Loaded:
    """A piece in memory: each of its tensors by what it is.

    Attributes:
        tensors: of the piece's elements, and some after the last one, so that lengths are aligned.
        areas: where they are on the disk.
        memory: what store.take() gave for them.
        transfer: what is being read, or written.
    """

    tensors: dict[str | int, torch.Tensor] = field(default_factory=dict)
    areas: dict[str | int, Area] = field(default_factory=dict)
    memory: list[torch.Tensor] = field(default_factory=list)
    transfer: Transfer = field(default_factory=Transfer)


class Streaming:
    """The tensors of an optimizer that are on a disk, between its steps and in them."""

    def __init__(self, optimizer: Stepped, store: Store, kinds: Mapping[str, torch.dtype]) -> None:
        """Have the state of an optimizer on a disk.

        Args:
            optimizer: which has no state yet.
            store: the disk.
            kinds: what the optimizer is known to keep for each element.

        Raises:
            OffloadError: the disk is full.
        """
        self._optimizer = optimizer
        self._store = store
        self._areas: dict[tuple[int, str], Area] = {}
        buckets = optimizer.sharded.gradients.buckets
        self._buckets: dict[int, Bucket] = {id(one.shards): one for one in buckets}
        largest = max(one.itemsize for one in (*kinds.values(), *self._dtypes()))
        self._pieces = list(self._cut(CHUNK_BYTES // largest))
        store.reserve(
            sum(
                aligned(shards.length * dtype.itemsize)
                for shards in optimizer.sharded.trained
                for dtype in kinds.values()
            )
        )

    def view(self, run: Run, key: str, dtype: torch.dtype) -> torch.Tensor:
        """Return the state of a run that is on the disk; zeros if it was not there before.

        Raises:
            OffloadError: the disk is full.
        """
        return self._area(run.shards, key, dtype).tensor[run.begin : run.end]

    def adopt(self) -> None:
        """Take what the optimizer has in memory, such as a state that was loaded, to the disk."""
        for run in (run for of_group in self._optimizer.runs for run in of_group):
            state = self._optimizer.state.get(run.tensor, {})
            for key, value in state.items():
                if is_elementwise(value, run.end - run.begin):
                    own = self.view(run, key, value.dtype)
                    if own.data_ptr() != value.data_ptr():
                        own.copy_(value)
                        state[key] = own
        self._store.drop()

    @torch.no_grad()
    def step(self, step: Callable[[], object]) -> None:
        """Have `step` update all parameters of the optimizer, for some after the other.

        Raises:
            OffloadError: the disk is full or broken; some parameters are updated then.
        """
        optimizer = self._optimizer
        self.adopt()
        groups = optimizer.param_groups
        before = [dict(group) for group in groups]
        after = list(before)
        states = {}
        reading = deque([self._read(one) for one in self._pieces[:1]])
        writing: deque[_Loaded] = deque()
        stepped = {part.group for piece in self._pieces for part in piece.parts}
        try:
            for number in set(range(len(groups))) - stepped:  # this rank has nothing of them
                optimizer.param_groups = [before[number] | {"params": []}]
                step()
                after[number] = optimizer.param_groups[0]
            for number, piece in enumerate(self._pieces):
                reading += [self._read(one) for one in self._pieces[number + 1 : number + 2]]
                loaded = reading.popleft()
                loaded.transfer.wait()
                for part in piece.parts:
                    after[part.group], states[id(part.run)] = self._step_part(
                        step, piece, part, loaded, dict(before[part.group])
                    )
                writing.append(self._write(piece, loaded))
                if len(writing) > 1:
                    self._give_back(writing.popleft())
            while writing:
                self._give_back(writing.popleft())
        finally:
            optimizer.param_groups = groups
            for one in (*reading, *writing):  # only after a failure
                one.transfer.settle()
        for group, changed in zip(groups, after, strict=True):
            group.update({key: value for key, value in changed.items() if key != "params"})
        for run in (run for of_group in optimizer.runs for run in of_group):
            state = states.get(id(run))
            if state:
                optimizer.state[run.tensor] = {
                    key: self.view(run, key, value.dtype) if is_area else value
                    for key, (value, is_area) in state.items()
                }

    def _dtypes(self) -> Iterator[torch.dtype]:
        for bucket in self._buckets.values():
            yield bucket.shards.master.dtype
            yield bucket.shards.dtype  # of the rounded values

    def _cut(self, numel: int) -> Iterator[_Piece]:
        """Yield pieces of so many elements, of what the optimizer has."""
        for shards in self._optimizer.sharded.trained:
            runs = [
                (run, number)
                for number, of_group in enumerate(self._optimizer.runs)
                for run in of_group
                if run.shards is shards
            ]
            for begin in range(0, shards.length, numel):
                end = min(begin + numel, shards.length)
                parts = [
                    _Part(run, number, max(run.begin, begin), min(run.end, end))
                    for run, number in runs
                    if max(run.begin, begin) < min(run.end, end)
                ]
                if parts:
                    yield _Piece(shards, begin, end, parts)

    def _area(self, shards: FlatShards, key: str, dtype: torch.dtype) -> Area:
        found = self._areas.get((id(shards), key))
        if found is None or found.tensor.dtype != dtype:
            found = self._areas[id(shards), key] = self._store.area(shards.length, dtype)
        return found

    def _read(self, piece: _Piece) -> _Loaded:
        """Begin to read a piece."""
        loaded = _Loaded()
        sources: dict[str | int, Area | None] = {
            _VALUES: piece.shards.master_area,
            _GRADIENT: self._buckets[id(piece.shards)].area,
        }
        for part in piece.parts:
            for key, value in self._optimizer.state.get(part.run.tensor, {}).items():
                if is_elementwise(value, part.run.end - part.run.begin):
                    sources[key] = self._area(piece.shards, key, value.dtype)
        for what, area in sources.items():
            if area is not None:
                tensor = self._place(loaded, what, area, piece)
                loaded.transfer.add(self._store.read(area, piece.begin, tensor))
        return loaded

    def _place(self, loaded: _Loaded, what: str | int, area: Area, piece: _Piece) -> torch.Tensor:
        """Return memory for a tensor of a piece."""
        memory = self._store.take()
        dtype = area.tensor.dtype
        tensor = memory[: aligned((piece.end - piece.begin) * dtype.itemsize)].view(dtype)
        loaded.memory.append(memory)
        loaded.areas[what] = area
        loaded.tensors[what] = tensor
        return tensor

    def _step_part(
        self,
        step: Callable[[], object],
        piece: _Piece,
        part: _Part,
        loaded: _Loaded,
        group: dict[str, Any],
    ) -> tuple[dict[str, Any], dict[str, tuple[Any, bool]]]:
        """Update what a piece has of a run.

        Returns the group as the optimizer has left it, and the run's state: tensors that are now in
        `loaded` (True), and values that are the run's (False).
        """
        optimizer, shards = self._optimizer, piece.shards
        here = slice(part.begin - piece.begin, part.end - piece.begin)
        there = slice(part.begin, part.end)
        values = loaded.tensors
        parameter = nn.Parameter(
            values[_VALUES][here] if _VALUES in values else shards.master[there]
        )
        gradient = self._buckets[id(shards)].gradient
        if gradient is not None:
            parameter.grad = values[_GRADIENT][here] if _GRADIENT in values else gradient[there]
        before = optimizer.state.get(part.run.tensor, {})
        if before:
            numel = part.run.end - part.run.begin
            optimizer.state[parameter] = {
                key: values[key][here] if is_elementwise(value, numel) else copy.deepcopy(value)
                for key, value in before.items()
            }
        optimizer.param_groups = [group | {"params": [parameter]}]
        step()
        state: dict[str, tuple[Any, bool]] = {}
        for key, value in optimizer.state.pop(parameter, {}).items():
            state[key] = value, is_elementwise(value, part.end - part.begin)
            if not state[key][1]:
                continue
            if key not in values:  # the first step has made it
                area = self._area(shards, key, value.dtype)
                self._place(loaded, key, area, piece).zero_()
            if values[key][here].data_ptr() != value.data_ptr():
                values[key][here] = value
        return optimizer.param_groups[0], state

    def _write(self, piece: _Piece, loaded: _Loaded) -> _Loaded:
        """Begin to write what a step has changed."""
        shards, numel = piece.shards, piece.end - piece.begin
        if shards.master is not shards.own:
            master = loaded.tensors[_VALUES][:numel]
            if shards.own_area is None:
                shards.own[piece.begin : piece.end] = master
            else:
                self._place(loaded, _ROUNDED, shards.own_area, piece)[:numel] = master
        for what, area in loaded.areas.items():
            if what != _GRADIENT:
                loaded.transfer.add(self._store.write(area, piece.begin, loaded.tensors[what]))
        return loaded

    def _give_back(self, loaded: _Loaded) -> None:
        loaded.transfer.wait()
        for one in loaded.memory:
            self._store.give_back(one)
