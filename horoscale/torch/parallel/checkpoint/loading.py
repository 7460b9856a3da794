"""load(): each rank reads the parts of a checkpoint that it needs, no matter who wrote them."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from horoscale.torch.parallel.checkpoint import folders
from horoscale.torch.parallel.checkpoint.contents import EXTRA, MODEL, RNG, rng_key, rng_states
from horoscale.torch.parallel.checkpoint.errors import CheckpointError
from horoscale.torch.parallel.checkpoint.flat import publish
from horoscale.torch.parallel.checkpoint.layout import Box, Piece
from horoscale.torch.parallel.checkpoint.model import (
    Model,
    StageNames,
    module_of,
    tensors_of,
)
from horoscale.torch.parallel.checkpoint.model_tensor import ModelTensor
from horoscale.torch.parallel.checkpoint.optimizer import slots_of
from horoscale.torch.parallel.checkpoint.ranks import Ranks
from horoscale.torch.parallel.checkpoint.saving import finish_running
from horoscale.torch.parallel.checkpoint.stored_optimizer import StoredOptimizer
from horoscale.torch.parallel.mesh import Mesh

if TYPE_CHECKING:
    from horoscale.torch.parallel.checkpoint.dcp import Reader

_SHOWN = 10  # names in a message
_OTHERS = ("optimizer.", RNG, f"{EXTRA}.")  # prefixes of keys that are not the model's


class Wanted(NamedTuple):
    """The tensors of a model that a rank reads."""

    pieces: dict[str, list[Piece]]  # by name in the checkpoint
    names: set[str]  # all names of the model's tensors
    problems: list[str]


def load(
    directory: str | os.PathLike[str],
    model: Model,
    optimizer: torch.optim.Optimizer | None = None,
    mesh: Mesh | None = None,
    *,
    strict: bool = True,
    rng: bool = False,
    names: StageNames | None = None,
) -> dict[str, Any] | None:
    """Load a checkpoint into a model, in place, however the model is divided. Collective.

        extra = par.load("checkpoints", model, optimizer, mesh)

    The checkpoint may have been written on any number of ranks, with any mesh, or by
    torch.distributed.checkpoint (from one state dict, or from one under "model" and one under
    "optimizer"). Each rank reads the parts that it needs. All ranks must have access to the
    directory.

    Args:
        directory: a folder of checkpoints, of which the newest is loaded; or one checkpoint.
        model: as in save(). Values are converted to the model's dtypes.
        optimizer: the optimizer, whose state and hyper-parameters are replaced.
        mesh: the mesh. None: current_mesh() or, without one, all ranks of the job or this process.
        strict: whether to raise an error if the checkpoint lacks an entry of the model, or has an
            entry that no rank's model has. Shapes must match in any case.
        rng: whether to restore the states of torch's generators. The mesh must have the same
            extents as before, except for tp.
        names: as in save().

    Returns:
        The `extra` that was passed to save(), or None.

    Raises:
        CheckpointError: there is no checkpoint, its names or shapes do not match the model, or a
            rank failed. The model is then unchanged. Or a file is missing, truncated or damaged. If
            that is detected only while reading, the model may be partly loaded.
        ValueError, TypeError: as in save().
        HorovodInternalError: a rank failed.
    """
    finish_running()
    ranks = Ranks.of(mesh)
    place = Path(directory).absolute()
    folder = ranks.first_does("find", lambda: folders.find(place))
    loaded = _Loading(folder, ranks)
    everyone = ranks.all_do("plan", lambda: loaded.plan(model, optimizer, rng, names))
    ranks.all_do("compare", lambda: loaded.compare(everyone, strict))
    ranks.all_do("read", loaded.read)
    publish(module_of(model))
    return loaded.extra


def load_extra(folder: Path) -> dict[str, Any] | None:
    """Return the `extra` that was passed to save(), or None. Not collective.

    Raises CheckpointError if the checkpoint is missing or damaged.
    """
    from horoscale.torch.parallel.checkpoint.dcp import Reader
    from horoscale.torch.parallel.checkpoint.metadata import read_metadata

    reader = Reader(folder, read_metadata(folder))
    if EXTRA not in reader.keys or reader.tensor(EXTRA) is not None:
        return None
    found: dict[str, Any] = reader.read({}, [EXTRA])[EXTRA]
    return found


def match(
    tensors: Sequence[ModelTensor], stored: Mapping[str, Sequence[int]], where: object
) -> Wanted:
    """Match a model's tensors with the stored ones, by any of their names."""
    pieces: dict[str, list[Piece]] = {}
    problems = []
    for one in tensors:
        name = next((name for name in one.names if name in stored), None)
        if name is None:
            continue
        shape = tuple(stored[name])
        if shape != one.layout.whole:
            problems.append(
                f"{name} has the shape {shape} in {where}, and {one.layout.whole} in the model"
            )
        elif one.tensor.is_meta:
            problems.append(f"{name} of the model has no memory: call to_empty() before")
        else:
            # Tied parameters of several stages may share a name.
            pieces.setdefault(name, []).extend(one.layout.pieces(one.tensor.detach()))
    return Wanted(pieces, {name for one in tensors for name in one.names}, problems)


def check_names(
    tensors: Sequence[ModelTensor],
    stored: Sequence[str],
    everyone: Sequence[set[str]],
    where: object,
) -> None:
    """Raise CheckpointError for names that are missing or that no rank's model has."""
    missing = [one.names[0] for one in tensors if not set(one.names) & set(stored)]
    unexpected = sorted(set(stored).difference(*everyone))
    told = []
    if missing:
        told.append(f"lacks {_some(missing)} of the model")
    if unexpected:
        told.append(f"has {_some(unexpected)}, which the model does not")
    if told:
        raise CheckpointError(f"{where} {', and '.join(told)} (strict=False ignores that)")


def raise_problems(problems: Sequence[str]) -> None:
    """Raise CheckpointError if there are any."""
    if problems:
        raise CheckpointError(_some(problems, "; "))


def _some(items: Sequence[str], between: str = ", ") -> str:
    more = len(items) - _SHOWN
    return between.join(items[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


class _Loading:
    """One rank's part of a load."""

    def __init__(self, folder: Path, ranks: Ranks) -> None:
        self._folder = folder
        self._ranks = ranks
        self._tensors: list[ModelTensor] = []
        self._stored: list[str] = []
        self._pieces: dict[str, list[Piece]] = {}
        self._values: list[str] = []
        self._rng: dict[str, torch.Tensor] = {}
        self._optimizer: StoredOptimizer | None = None
        self.extra: dict[str, Any] | None = None
        self._reader: Reader

    def plan(self, model: Model, optimizer: Any, rng: bool, names: StageNames | None) -> set[str]:
        """Determine what to read; return the names in this rank's model."""
        # Imported here: it takes half a second, and only this module needs torch.distributed.
        from horoscale.torch.parallel.checkpoint.dcp import Reader
        from horoscale.torch.parallel.checkpoint.metadata import read_metadata

        self._reader = Reader(self._folder, read_metadata(self._folder))
        self._tensors = tensors_of(model, names, self._ranks.stage)
        prefix, stored = self._model_keys()
        self._stored = list(stored)
        wanted = match(self._tensors, stored, self._folder)
        raise_problems(wanted.problems)
        self._pieces = {prefix + name: pieces for name, pieces in wanted.pieces.items()}
        if optimizer is not None:
            slots = slots_of(optimizer, self._tensors)
            self._optimizer = StoredOptimizer(self._reader, self._folder, slots, prefix)
            self._pieces |= self._optimizer.pieces
            self._values += self._optimizer.values
        if EXTRA in self._reader.keys and self._reader.tensor(EXTRA) is None:
            self._values.append(EXTRA)
        if rng:
            self._rng = self._rng_states()
        return wanted.names

    def compare(self, everyone: Sequence[set[str]], strict: bool) -> None:
        """Raise CheckpointError if models and checkpoint differ, or a file is missing."""
        if strict:
            check_names(self._tensors, self._stored, everyone, self._folder)
        self._reader.check(self._pieces, self._values)

    def read(self) -> None:
        """Read what plan() has determined."""
        with torch.no_grad():
            found = self._reader.read(self._pieces, self._values)
        if self._optimizer is not None:
            self._optimizer.give(found)
        for key, state in self._rng.items():
            restore = torch.cuda.set_rng_state if key.endswith(".cuda") else torch.set_rng_state
            restore(state)
        self.extra = found.get(EXTRA)

    def _model_keys(self) -> tuple[str, dict[str, tuple[int, ...]]]:
        """Return the prefix of the model's tensors, and their shapes by name."""
        shapes = {key: found[0] for key in self._reader.keys if (found := self._reader.tensor(key))}
        own = {name for one in self._tensors for name in one.names}
        prefix = MODEL
        if _is_of_model_alone(shapes, own):
            prefix = ""
            shapes = {
                key: shape
                for key, shape in shapes.items()
                if key in own or (key != EXTRA and not key.startswith(_OTHERS))
            }
        return prefix, {
            key.removeprefix(prefix): shape
            for key, shape in shapes.items()
            if key.startswith(prefix)
        }

    def _rng_states(self) -> dict[str, torch.Tensor]:
        """Return buffers for the random states; raise CheckpointError if they do not match."""
        there = {key.rpartition(".")[0] for key in self._reader.keys if key.startswith(RNG)}
        if not there:
            raise CheckpointError(f"{self._folder} has no random numbers: save them with rng=True")
        own = {
            key: torch.empty_like(state)
            for key, state in rng_states(self._ranks).items()
            if key in self._reader.keys
        }
        needed = set(map(rng_key, self._ranks.all_places()))
        if there != needed:
            raise CheckpointError(
                f"{self._folder} has the random numbers of {_some(sorted(there))}, and this mesh "
                f"is {_some(sorted(needed))}: load without them, and call par.rng.seed()"
            )
        for key, state in own.items():
            self._pieces[key] = [Piece(Box.of_all(state.shape), state)]
        return own


def _is_of_model_alone(stored: Collection[str], own: set[str]) -> bool:
    """Return whether a checkpoint consists of a model's state dict only.

    `own` are the model's names, which may begin with "model.", too.
    """
    if any(MODEL + name in stored for name in own):
        return False
    return any(name in stored for name in own) or not any(key.startswith(MODEL) for key in stored)
