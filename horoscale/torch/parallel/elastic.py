"""ElasticState: a model with a divided training state, in a job whose ranks change.

Each rank commits the part that it owns, and a buddy keeps a copy in case the rank is lost. After a
change of the ranks, the model is created again for the current ones, and the committed parts are
redistributed. Checkpoints have the format of par.save().
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from horoscale.common import allgather_object, broadcast_object
from horoscale.common.environment import variable
from horoscale.common.job import current_runtime
from horoscale.elastic.checkpointing import interval
from horoscale.elastic.membership import membership
from horoscale.elastic.objects import ObjectState
from horoscale.elastic.snapshot import Snapshot
from horoscale.torch.movement import allgather
from horoscale.torch.parallel.checkpoint import folders
from horoscale.torch.parallel.checkpoint.flat import RunState
from horoscale.torch.parallel.checkpoint.loading import load, load_extra
from horoscale.torch.parallel.checkpoint.saving import save
from horoscale.torch.parallel.zero.elementwise import is_elementwise
from horoscale.torch.parallel.zero.flat import FlatShards, Owned
from horoscale.torch.parallel.zero.runs import Run
from horoscale.torch.parallel.zero.sharded import sharded_of

Make = Callable[[], "tuple[nn.Module, torch.optim.Optimizer]"]

_VALUES = "values"
_OBJECTS = "elastic"  # in the extra of a checkpoint


class ElasticState(ObjectState):
    """Holds a model that par.shard() divides among all ranks, its optimizer, and plain objects.

        def make():
            mesh = par.init()
            model = par.shard(Model(), mesh.dp, stage=3, unit=Block)
            return model, par.ZeroOptimizer(torch.optim.AdamW, model, lr=1e-3)

        state = par.ElasticState(make, step=0)

        @hvd.elastic.run
        def train(state):
            while state.step < 1000:
                state.model(batch(state.step)).backward()
                state.optimizer.step()
                state.optimizer.zero_grad()
                state.step += 1
                state.commit()

    The last two commits are kept. They take memory for two copies of this rank's part, and of the
    part of the rank whose buddy it is. Each rank's part includes all buffers and, in stages 1 and
    2, all frozen parameters.

    With `--checkpoint-dir`, all ranks write their parts with save() while training continues, with
    the objects under `extra["elastic"]`. A job can resume (`--resume`) from any checkpoint that
    save() has written for such a model, on any number of ranks, and load() reads a job's
    checkpoints. A job that is terminated does not write a final checkpoint.

    Attributes:
        model: the model from `make` for the current ranks; replaced after each change.
        optimizer: its optimizer, also replaced after each change.
    """

    model: nn.Module
    optimizer: Any

    def __init__(self, make: Make, **objects: Any) -> None:
        """Save the objects as the first commit.

        Args:
            make: creates the model, sharded over all ranks, and its ZeroOptimizer. All ranks call
                it together before the function that hvd.elastic.run() wraps is called: at the start
                and after each change of the ranks. The committed values are then loaded.
            objects: as in hvd.elastic.ObjectState. Checkpoints support dicts, lists, numbers,
                strings, None and tensors.

        Raises:
            ValueError: `CHECKPOINT_EVERY` does not parse.
        """
        self._make = make
        self._written_at = time.monotonic()
        self._folder = variable("CHECKPOINT_DIR")[1] or None
        self._seconds, self._every = interval()
        super().__init__(**objects)

    # ------------------------------------------------------------ what a rank owns

    def shards(self) -> Mapping[str, Any]:
        """Return this rank's part of each parameter, with the optimizer's state for it.

        Includes what every rank holds in full: buffers and, in stages 1 and 2, frozen parameters.
        """
        if "model" not in self.__dict__:
            return {}
        states = {owned.name: state for owned, state in self._states()}
        parameters = {
            owned.name: {
                "begin": owned.begin,
                "end": owned.end,
                _VALUES: shards.master[owned.offset :][: owned.end - owned.begin],
                "state": dict(states.get(owned.name, {})),
            }
            for shards in self._all_shards()
            for owned in shards.owned()
        }
        whole = _whole(self.model)
        return {"parameters": parameters, "whole": whole, "groups": self._groups()}

    @torch.no_grad()
    def load_shards(self, shards: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
        """Redistribute the ranks' parts among the current ranks. Collective."""
        parts = _Parts([one for _, one in shards if one])
        sharded = sharded_of(self.model)
        states = {owned.name: state for owned, state in self._states()}
        sharded.begin_update()
        for flat in self._all_shards():
            owned_by_name = {one.name: one for one in flat.owned()}
            for place in flat.places:
                owned = owned_by_name.get(place.name)
                for key, whole in parts.gathered(place.name, place.shape.numel()):
                    if owned is None:
                        continue
                    own = whole[owned.begin : owned.end]
                    if key == _VALUES:
                        flat.master[owned.offset :][: len(own)] = own
                    elif place.name in states:
                        states[place.name][key] = own
                if owned is not None and place.name in states:
                    for key, value in parts.single(place.name).items():
                        states[place.name][key] = value
        sharded.publish()
        parts.load_rest(self.model, self.optimizer.param_groups)

    def _all_shards(self) -> list[FlatShards]:
        sharded = sharded_of(self.model)
        return sharded.trained + sharded.frozen

    def _states(self) -> Iterator[tuple[Owned, RunState]]:
        runs: list[list[Run]] = self.optimizer.runs
        for run in (run for of_group in runs for run in of_group):
            for owned in run.owned:
                yield owned, RunState(self.optimizer, run, owned)  # type: ignore[arg-type]

    def _groups(self) -> list[dict[str, Any]]:
        return [
            {key: value for key, value in group.items() if key != "params"}
            for group in self.optimizer.param_groups
        ]

    # ------------------------------------------------------------ changes of the ranks

    def _after_change(self) -> None:
        self.model, self.optimizer = self._make()
        axis, size = sharded_of(self.model).axis, current_runtime().topology.size
        if axis.size != size:
            raise ValueError(
                f"make() has sharded the model over {axis.size} of {size} ranks: ElasticState "
                "needs par.shard() over all of them"
            )
        super()._after_change()

    def _resumed(self) -> tuple[Snapshot, int] | None:
        """Return the objects of the checkpoint to begin with, if this rank is to send them."""
        given = variable("RESUME")[1]
        if not given or current_runtime().topology.rank != membership().source:
            return None
        folder = Path(given).absolute()
        is_own = self._folder is not None and folder == Path(self._folder).absolute()
        if is_own and folders.latest(folder) is None:
            return None  # a job that is started again may have ended before its first one
        found = folders.find(folder)
        self._resumed_from = str(found)
        extra = load_extra(found) or {}
        snapshot = Snapshot()
        snapshot.take({**self._capture(), **extra.get(_OBJECTS, {})})
        return snapshot, self._number()

    def _resumed_shards(self) -> None:
        """Load the job's initial checkpoint into the newly created model."""
        source = membership().source
        self._resumed_from = broadcast_object(self._resumed_from, source, name="elastic.resumed")
        if self._resumed_from is not None:
            load(self._resumed_from, self.model, self.optimizer)

    # ------------------------------------------------------------ checkpoints

    def _is_due(self) -> bool:
        number = self._number()
        if self._folder is None or number <= self._commits.confirmed:
            return False
        if current_runtime().topology.rank != 0:
            return False
        if self._every:
            return number % self._every == 0
        return time.monotonic() - self._written_at >= self._seconds

    def _confirm(self, due: bool) -> None:
        before = self._commits.confirmed
        confirmed = self._commits.confirm()
        self._shards.confirm(confirmed)
        if due and confirmed > before:
            self._write(asynchronous=True)

    def _write(self, asynchronous: bool) -> None:
        if self._folder is None:
            return
        self._written_at = time.monotonic()
        latest = self._commits.latest()
        objects = {} if latest is None else latest.value()
        save(
            self._folder,
            self.model,
            self.optimizer,
            extra={_OBJECTS: objects},
            asynchronous=asynchronous,
        )

    def _finish(self) -> None:
        if self._folder is not None:
            self._before_commit()
            self.save()  # objects of the current model, which may be ahead of the last commit
            self._write(asynchronous=False)

    def _give_up(self, *, only_shards: bool = False) -> None:
        """Write nothing: a checkpoint needs all ranks."""

    def _last_words(self) -> None:
        return None


def _whole(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return a model's buffers and the parameters that are not divided."""
    divided = sharded_of(model).names
    return dict(model.named_buffers()) | {
        name: one for name, one in model.named_parameters() if id(one) not in divided
    }


class _Parts:
    """The ranks' parts of a model that was divided among other ranks."""

    def __init__(self, own: Sequence[Mapping[str, Any]]) -> None:
        """Exchange the index of all parts. Collective."""
        self._own: dict[str, list[Mapping[str, Any]]] = {}
        for one in own:
            for name, part in one["parameters"].items():
                self._own.setdefault(name, []).append(part)
        told: list[tuple[_Index, bool]] = allgather_object((_index(self._own), bool(own)))
        self._ranks = [index for index, _ in told]
        source = next((rank for rank, (_, has) in enumerate(told) if has), None)
        rest = (own[0]["whole"], own[0]["groups"]) if own else None
        self._rest = None if source is None else broadcast_object(rest, source)

    def gathered(self, name: str, numel: int) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the values of a parameter and of its state, flat and whole. Collective."""
        ranges = [
            (begin, end) for index in self._ranks for begin, end in index.ranges.get(name, ())
        ]
        if sum(end - begin for begin, end in ranges) != numel:
            raise RuntimeError(
                f"the ranks have {sum(end - begin for begin, end in ranges)} of the {numel} "
                f"elements of {name}: make() must create the same model that was committed"
            )
        kinds = {key: kind for one in self._ranks for key, kind in one.kinds.get(name, {}).items()}
        for key in sorted(kinds):
            own = [
                part[_VALUES] if key == _VALUES else part["state"][key]
                for part in self._own.get(name, ())
            ]
            mine = torch.cat(own) if own else torch.empty(0, dtype=kinds[key])
            joined = mine if len(self._ranks) == 1 else allgather(mine)
            whole, place = torch.empty(numel, dtype=kinds[key]), 0
            for begin, end in ranges:
                whole[begin:end] = joined[place : place + end - begin]
                place += end - begin
            yield key, whole

    def single(self, name: str) -> dict[str, Any]:
        """Return the optimizer's scalar state for a parameter, such as "step"."""
        return next((one.single[name] for one in self._ranks if name in one.single), {})

    def load_rest(self, model: nn.Module, groups: list[dict[str, Any]]) -> None:
        """Load the values that every rank holds in full, and the options of parameter groups."""
        if self._rest is None:
            return
        whole, options = self._rest
        own = _whole(model)
        for name, value in whole.items():
            own[name].copy_(value)
        for group, one in zip(groups, options, strict=True):
            group.update(one)


class _Index:
    """A rank's part of each parameter: ranges of elements, element types, and scalars."""

    def __init__(self) -> None:
        self.ranges: dict[str, list[tuple[int, int]]] = {}
        self.kinds: dict[str, dict[str, torch.dtype]] = {}
        self.single: dict[str, dict[str, Any]] = {}


def _index(own: Mapping[str, Sequence[Mapping[str, Any]]]) -> _Index:
    index = _Index()
    for name, parts in own.items():
        index.ranges[name] = [(part["begin"], part["end"]) for part in parts]
        for part in parts:
            numel = part["end"] - part["begin"]
            index.kinds.setdefault(name, {})[_VALUES] = part[_VALUES].dtype
            for key, value in part["state"].items():
                if is_elementwise(value, numel):
                    index.kinds[name][key] = value.dtype
                else:
                    index.single.setdefault(name, {})[key] = value
    return index
