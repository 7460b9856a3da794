"""Compares what all ranks must pass to par.shard() alike, before anything is allocated."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import nn

from horoscale.common import allgather_object
from horoscale.common.exceptions import MismatchError
from horoscale.torch.parallel.mesh import Axis
from horoscale.torch.parallel.offload import OffloadError

_EXCHANGE = "horoscale.zero"
_CHECKSUM = "checksum of parameter "
_T = TypeVar("_T")


def need_same_model(
    axis: Axis,
    options: Mapping[str, object],
    units: Sequence[Mapping[str, nn.Parameter]],
    compare_values: bool = True,
) -> None:
    """Compare options, parameters and their values among the ranks of an axis. Collective.

    Raises MismatchError on all ranks, which names the first thing that differs and the ranks.
    """
    if axis.set is None:
        return
    said = dict(options)
    for parameters in units:
        for name, parameter in parameters.items():
            kind = str(parameter.dtype).removeprefix("torch.")
            frozen = "" if parameter.requires_grad else " frozen"
            said[f"parameter {name}"] = f"{kind}{list(parameter.shape)}{frozen}"
    said["units"] = [list(parameters) for parameters in units]
    for parameters in units if compare_values else ():
        for name, parameter in parameters.items():
            said[f"{_CHECKSUM}{name}"] = checksum(parameter)
    _need_same(axis, said)


def need_same_values(axis: Axis, checksums: Mapping[str, int]) -> None:
    """Compare checksums of parameters by name, as in need_same_model(). Collective."""
    if axis.set is not None:
        _need_same(axis, {f"{_CHECKSUM}{name}": one for name, one in checksums.items()})


def all_succeed(axis: Axis, work: Callable[[], _T]) -> _T:
    """Run a function that uses a disk on all ranks of an axis. Collective.

    If it raises OffloadError on one rank, all ranks raise it; it names the rank.
    """
    failure: OffloadError | None = None
    results: list[_T] = []
    try:
        results.append(work())
    except OffloadError as error:
        failure = error
    raise_everywhere(axis, failure)
    return results[0]


def raise_everywhere(axis: Axis, failure: OffloadError | None) -> None:
    """Raise OffloadError on all ranks of an axis if one has failed. Collective."""
    if axis.set is None:
        if failure is not None:
            raise failure
        return
    said = allgather_object(None if failure is None else str(failure), _EXCHANGE, axis.set)
    told = [f"rank {rank}: {one}" for rank, one in zip(axis.ranks, said, strict=True) if one]
    if told:
        raise OffloadError("; ".join(told)) from failure


def checksum(parameter: nn.Parameter) -> int:
    """Return a checksum of a parameter's values."""
    values = parameter.detach().contiguous().view(-1)
    return zlib.crc32(values.view(torch.uint8).numpy().data) if values.numel() else 0


def _need_same(axis: Axis, said: Mapping[str, object]) -> None:
    assert axis.set is not None
    answers = allgather_object(said, _EXCHANGE, axis.set)
    keys = list(dict.fromkeys(key for answer in answers for key in answer))
    for key in keys:
        values = [answer.get(key) for answer in answers]
        if any(value != values[0] for value in values):
            each = ", ".join(
                f"rank {rank}: {value}" for rank, value in zip(axis.ranks, values, strict=True)
            )
            hint = ""
            if key.startswith(_CHECKSUM):
                hint = (
                    ". Give all ranks the same values first: par.broadcast_parameters(model, mesh)"
                    ', or, where the model is on "meta", the same torch.manual_seed()'
                )
            raise MismatchError(
                f"the ranks of axis {axis.name} shard different models: {key}: {each}{hint}"
            )
