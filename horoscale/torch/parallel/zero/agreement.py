"""What all ranks have to give par.shard() alike, compared before anything is allocated."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from horoscale.common import allgather_object
from horoscale.common.exceptions import MismatchError
from horoscale.torch.parallel.mesh import Axis

_EXCHANGE = "horoscale.zero"


def need_same_model(
    axis: Axis, options: Mapping[str, object], units: Sequence[Mapping[str, nn.Parameter]]
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
    for parameters in units:
        for name, parameter in parameters.items():
            said[f"checksum of parameter {name}"] = _checksum(parameter)
    answers = allgather_object(said, _EXCHANGE, axis.set)
    keys = list(dict.fromkeys(key for answer in answers for key in answer))
    for key in keys:
        values = [answer.get(key) for answer in answers]
        if any(value != values[0] for value in values):
            each = ", ".join(
                f"rank {rank}: {value}" for rank, value in zip(axis.ranks, values, strict=True)
            )
            hint = ""
            if key.startswith("checksum"):
                hint = (
                    ". Give all ranks the same values first: par.broadcast_parameters(model, mesh)"
                )
            raise MismatchError(
                f"the ranks of axis {axis.name} shard different models: {key}: {each}{hint}"
            )


def _checksum(parameter: nn.Parameter) -> int:
    values = parameter.detach().contiguous().view(-1)
    return zlib.crc32(values.view(torch.uint8).numpy().data) if values.numel() else 0
