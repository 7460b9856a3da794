"""An optimizer's state in a checkpoint: determines what to read, and loads it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from horoscale.torch.parallel.checkpoint.errors import CheckpointError
from horoscale.torch.parallel.checkpoint.flat import RunState
from horoscale.torch.parallel.checkpoint.layout import Layout, Piece
from horoscale.torch.parallel.checkpoint.optimizer import GROUPS, STATE, Slot

if TYPE_CHECKING:
    from horoscale.torch.parallel.checkpoint.dcp import Reader

_OF_SCHEDULERS = {"initial_lr"}
# Entries of a group about single parameters; they may differ here.
_OF_MEMBERS = {"params", "param_names"}


class StoredOptimizer:
    """The stored state of an optimizer's parameters, in memory for this rank's shards.

    Attributes:
        pieces: the pieces to fill, by the keys of tensors.
        values: the keys of other values.
    """

    def __init__(self, reader: Reader, folder: Path, slots: Sequence[Slot], prefix: str) -> None:
        """Allocate memory for the stored state of the slots.

        Raises CheckpointError if the checkpoint's state is not that of such an optimizer.
        """
        self.pieces: dict[str, list[Piece]] = {}
        self.values: list[str] = []
        self._reader = reader
        self._folder = folder
        self._slots = slots
        self._prefix = prefix
        self._keys = _by_name(reader.keys, STATE)
        self._hyper = _by_parameter(_by_name(reader.keys, GROUPS), reader)
        if not self._keys and not self._hyper:
            raise CheckpointError(f"{folder} has no state of an optimizer: it was saved without")
        self._new: list[dict[str, torch.Tensor]] = [self._make(slot) for slot in slots]
        for slot in slots:
            self._check_group(slot)

    def give(self, values: dict[str, Any]) -> None:
        """Load the tensors and these values, by key, into the optimizer."""
        for slot in self._slots:
            for key in list(slot.state):
                del slot.state[key]
        for slot, new in zip(self._slots, self._new, strict=True):
            for key, stored in self._stored(self._keys, slot).items():
                slot.state[key] = new[key] if key in new else values[stored]
            for key, stored in self._stored(self._hyper, slot).items():
                slot.group[key] = _where_it_was(values[stored], slot.group.get(key))

    def _stored(self, keys: dict[str, dict[str, str]], slot: Slot) -> dict[str, str]:
        """Return a slot's keys in the checkpoint, by the optimizer's keys."""
        return next((keys[name] for name in slot.of.names if name in keys), {})

    def _make(self, slot: Slot) -> dict[str, torch.Tensor]:
        new = {}
        for key, stored in self._stored(self._keys, slot).items():
            found = self._reader.tensor(stored)
            if found is None:
                self.values.append(stored)
                continue
            shape, dtype = found
            # "step" is always a scalar, even if the parameter is one, too, and is divided.
            is_divided = shape == slot.layout.whole and (shape != () or key != "step")
            layout = slot.layout if is_divided else Layout.of_whole(shape)
            if layout is not slot.layout and shape:
                _check_undivided(slot, key, shape, self._folder)
            made = self._dtype(slot, key, dtype)
            memory = None
            if layout is slot.layout and isinstance(slot.state, RunState):
                memory = slot.state.memory(key, made)
            new[key] = (
                torch.zeros(layout.shape, dtype=made, device=_device(slot, key))
                if memory is None
                else memory
            )
            self.pieces.setdefault(stored, []).extend(layout.pieces(new[key]))
        return new

    def _dtype(self, slot: Slot, key: str, stored: torch.dtype) -> torch.dtype:
        """Return the dtype for a tensor: the parameter's, if their stored dtypes are equal."""
        if key == "step":
            return stored
        names = (self._prefix + name for name in slot.of.names)
        of_parameter = next(filter(None, map(self._reader.tensor, names)), None)
        is_same = of_parameter is not None and of_parameter[1] == stored
        return slot.of.tensor.dtype if is_same else stored

    def _check_group(self, slot: Slot) -> None:
        """Raise CheckpointError if a group has another optimizer's hyper-parameters."""
        stored = self._stored(self._hyper, slot)
        name = slot.of.names[0]
        if not stored:
            raise CheckpointError(f"{self._folder} has no hyper-parameters of {name}")
        theirs, own = set(stored), set(slot.group) - _OF_MEMBERS
        if theirs - own - _OF_SCHEDULERS and own - theirs - _OF_SCHEDULERS:
            raise CheckpointError(
                f"{self._folder} is of another optimizer: for {name} it has "
                f"{', '.join(sorted(theirs))}, and this one {', '.join(sorted(own))}"
            )
        self.values += stored.values()


def _where_it_was(value: Any, before: Any) -> Any:
    """Return a hyper-parameter; a tensor is moved to the device of the one that it replaces."""
    tensors = isinstance(value, torch.Tensor) and isinstance(before, torch.Tensor)
    return value.to(before.device) if tensors else value


def _check_undivided(slot: Slot, key: str, shape: tuple[int, ...], folder: Path) -> None:
    if slot.layout != Layout.of_whole(slot.layout.whole):
        raise CheckpointError(
            f"{key!r} of {slot.of.names[0]} has the shape {shape} in {folder}, and the parameter "
            f"{slot.layout.whole}: how to divide it is not known"
        )


def _device(slot: Slot, key: str) -> torch.device:
    """Return the device on which torch.optim keeps a tensor of the state."""
    on_parameters = key != "step" or slot.group.get("capturable") or slot.group.get("fused")
    return slot.of.tensor.device if on_parameters else torch.device("cpu")


def _by_name(keys: Sequence[str], prefix: str) -> dict[str, dict[str, str]]:
    """Return the full keys by parameter name and the rest of the key."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for key in keys:
        if key.startswith(prefix):
            name, _, what = key.removeprefix(prefix).rpartition(".")
            found[name][what] = key
    return dict(found)


def _by_parameter(groups: dict[str, dict[str, str]], reader: Reader) -> dict[str, dict[str, str]]:
    """Return the same for hyper-parameters, including groups that list names of parameters."""
    found: dict[str, dict[str, str]] = {}
    for name, keys in groups.items():
        own = {what: key for what, key in keys.items() if what not in _OF_MEMBERS}
        if "params" not in keys:
            found[name] = own
            continue
        for parameter in reader.read({}, [keys["params"]])[keys["params"]]:
            found[parameter] = own
    return found
