"""A rank's contribution to a checkpoint: tensors, whole or in part, and other values."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from horoscale.torch.parallel.checkpoint.layout import Layout, Piece
from horoscale.torch.parallel.checkpoint.model import Model, StageNames, tensors_of
from horoscale.torch.parallel.checkpoint.optimizer import (
    GROUPS,
    STATE,
    Slot,
    hyper_parameters,
    slots_of,
)
from horoscale.torch.parallel.checkpoint.ranks import Ranks

MODEL = "model."
EXTRA = "extra"
RNG = "rng."
_PLAIN = {str, int, float, bool, type(None), torch.Tensor, torch.nn.Parameter}


@dataclass
class Held:
    """This rank's part of a tensor of the checkpoint.

    Attributes:
        keys: its keys in the checkpoint. Those after the first are aliases.
        shape: the shape of the whole tensor.
        dtype: its dtype.
        pieces: this rank's pieces of it.
        stage: its pipeline stage. Another stage must not use the same name.
        is_tied: whether it is tied, so that several stages may use its name.
        first_only: whether only the first rank's values are saved, because they may differ.
    """

    keys: list[str]
    shape: tuple[int, ...]
    dtype: torch.dtype
    pieces: list[Piece]
    stage: int = 0
    is_tied: bool = False
    first_only: bool = False


@dataclass
class Value:
    """A value that is not a tensor, written by the first rank that has it."""

    keys: list[str]
    value: Any


@dataclass
class Contents:
    """Everything that a rank contributes."""

    tensors: list[Held] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)


def model_contents(
    model: Model, names: StageNames | None, ranks: Ranks, prefix: str = MODEL
) -> list[Held]:
    """Return the tensors of a model. Raises the errors of tensors_of()."""
    return [
        Held(
            [prefix + name for name in one.names],
            one.layout.whole,
            one.tensor.dtype,
            one.layout.pieces(one.tensor.detach()),
            one.stage,
            one.is_tied,
            first_only=not one.is_parameter,
        )
        for one in tensors_of(model, names, ranks.stage)
    ]


def contents_of(
    model: Model,
    optimizer: Any,
    names: StageNames | None,
    extra: Mapping[str, Any] | None,
    rng: bool,
    ranks: Ranks,
) -> Contents:
    """Return this rank's part of everything to be saved.

    Raises:
        ValueError, TypeError: as in tensors_of() and slots_of(), and for a value that cannot be
            loaded without running code.
    """
    contents = Contents(model_contents(model, names, ranks))
    if optimizer is not None:
        for slot in slots_of(optimizer, tensors_of(model, names, ranks.stage)):
            _add_slot(contents, slot)
    if ranks.is_first and extra is not None:
        _check_plain(dict(extra), EXTRA)
        contents.values.append(Value([EXTRA], dict(extra)))
    if rng:
        for key, state in rng_states(ranks).items():
            contents.tensors.append(_of_first(key, state))
    return contents


def rng_key(coordinates: Mapping[str, int]) -> str:
    """Return the key of the random states at these coordinates. Ranks of tp share it."""
    return RNG + ",".join(
        f"{name}={at}" for name, at in sorted(coordinates.items()) if name != "tp"
    )


def rng_states(ranks: Ranks) -> dict[str, torch.Tensor]:
    """Return the states of this rank's generators: the CPU's and, if there is one, the GPU's."""
    key = rng_key(ranks.place)
    states = {f"{key}.cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states[f"{key}.cuda"] = torch.cuda.get_rng_state()
    return states


def _add_slot(contents: Contents, slot: Slot) -> None:
    names = slot.of.names
    for key, value in slot.state.items():
        keys = [f"{STATE}{name}.{key}" for name in names]
        if isinstance(value, torch.Tensor):
            layout = slot.divided(key, value)
            pieces = layout.pieces(value.detach())
            held = Held(keys, layout.whole, value.dtype, pieces, slot.of.stage, slot.of.is_tied)
            contents.tensors.append(held)
        else:
            _check_plain(value, keys[0])
            contents.values.append(Value(keys, value))
    for key, value in hyper_parameters(slot.group):
        keys = [f"{GROUPS}{name}.{key}" for name in names]
        _check_plain(value, keys[0])
        contents.values.append(Value(keys, value))


def _of_first(key: str, tensor: torch.Tensor) -> Held:
    """Return a replicated tensor, of which the first rank's values are saved."""
    layout = Layout.of_whole(tensor.shape)
    pieces = layout.pieces(tensor)
    return Held([key], layout.whole, tensor.dtype, pieces, first_only=True)


def _check_plain(value: Any, where: str) -> None:
    """Raise TypeError for a value that could only be loaded by unpickling arbitrary objects.

    Instances of subclasses are rejected, because they would be loaded as the base class.
    """
    if type(value) in (dict, OrderedDict):
        for key, one in value.items():
            if type(key) not in (str, int):
                raise TypeError(f"{where} has the key {key!r}, which is no string")
            _check_plain(one, f"{where}[{key!r}]")
    elif type(value) in (list, tuple):
        for position, one in enumerate(value):
            _check_plain(one, f"{where}[{position}]")
    elif type(value) not in _PLAIN:
        raise TypeError(
            f"{where} is {value!r}, of {type(value)}: checkpoints take tensors, numbers, strings, "
            "None, and lists, tuples and dicts of them"
        )
