"""Steps of an optimizer with offloaded tensors: piece by piece, overlapped with disk I/O.

While one piece is updated, the next one is read and the previous one is written.
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

# Keys besides those of the optimizer's state, which are strings.
_VALUES, _GRADIENT, _ROUNDED = range(3)


class Stepped(Protocol):
    """The interface of a ZeroOptimizer that this module uses."""

    sharded: Sharded
    runs: list[list[Run]]
    state: Any
    param_groups: list[dict[str, Any]]


class _Part(NamedTuple):
    """A piece's part of a run: elements of its FlatShards."""

    run: Run
    group: int
    begin: int
    end: int


class _Piece(NamedTuple):
    """Neighboring elements of a FlatShards that are in memory at the same time."""

    shards: FlatShards
    begin: int
    end: int
    parts: list[_Part]


@dataclass
class _Loaded:
    """A piece in memory: its tensors by kind.

    Attributes:
        tensors: the piece's elements, padded to aligned lengths.
        areas: their locations on the disk.
        memory: their buffers from store.take().
        transfer: the reads or writes in progress.
    """

    tensors: dict[str | int, torch.Tensor] = field(default_factory=dict)
    areas: dict[str | int, Area] = field(default_factory=dict)
    memory: list[torch.Tensor] = field(default_factory=list)
    transfer: Transfer = field(default_factory=Transfer)


class Streaming:
    """The offloaded tensors of an optimizer, between and during its steps."""

    def __init__(self, optimizer: Stepped, store: Store, kinds: Mapping[str, torch.dtype]) -> None:
        """Offload the state of an optimizer.

        Args:
            optimizer: an optimizer without state.
            store: the disk.
            kinds: the dtypes of the tensors that it keeps for each element, by key.

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
        """Return an offloaded state tensor of a run, which is created as zeros if necessary.

        Raises:
            OffloadError: the disk is full.
        """
        return self._area(run.shards, key, dtype).tensor[run.begin : run.end]

    def adopt(self) -> None:
        """Move state that the optimizer has in memory, such as a loaded state, to the disk."""
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
        """Make `step` update all parameters of the optimizer, piece by piece.

        Raises:
            OffloadError: the disk is full or broken; some parameters are then updated.
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
            for number in set(range(len(groups))) - stepped:  # groups without a part on this rank
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
        """Yield pieces of at most `numel` elements of the optimizer's tensors."""
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
        """Start to read a piece."""
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
        """Update a piece's part of a run.

        Returns the group as modified by the optimizer, and the run's state: each value, and whether
        it is a tensor in `loaded` (True) or a value for all of the run (False).
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
            if key not in values:  # the first step has created it
                area = self._area(shards, key, value.dtype)
                self._place(loaded, key, area, piece).zero_()
            if values[key][here].data_ptr() != value.data_ptr():
                values[key][here] = value
        return optimizer.param_groups[0], state

    def _write(self, piece: _Piece, loaded: _Loaded) -> _Loaded:
        """Start to write what a step has changed."""
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
