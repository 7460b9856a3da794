"""Checks of the options of DistributedOptimizer, which become what the reducer takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch

from horoscale._core import ReduceOp, UnsupportedError
from horoscale.common.environment import variable
from horoscale.torch.collectives import Reduction
from horoscale.torch.low_rank import PowerSGD
from horoscale.torch.reducer import Parameters

NamedParameters = Iterable[tuple[str, torch.Tensor]]


def ready_in_backward(gradients_ready: str | None, overlap_step: bool) -> bool:
    """Return whether backward() returns averages. Raises ValueError for anything else."""
    source, value = "gradients_ready", gradients_ready
    if value is None:
        source, value = variable("GRADIENTS_READY")
    if value not in (None, "", "step", "backward"):
        raise ValueError(f"{source}={value!r} is neither 'step' nor 'backward'")
    if value == "backward" and overlap_step:
        raise ValueError(
            f"{source}='backward' is not possible with overlap_step=True, with which gradients "
            "come after step()"
        )
    return value == "backward"


def reduction_of(op: ReduceOp, predivide: float) -> Reduction:
    """Return the reduction. Raises UnsupportedError for a factor without an average."""
    if op is ReduceOp.AVERAGE:
        return Reduction(op, 1.0 / predivide, predivide)
    if predivide != 1.0:
        raise UnsupportedError("gradient_predivide_factor is possible with op=Average only")
    return Reduction(op)


def check_passes(passes: int) -> None:
    """Raise ValueError unless it is a possible number of backward passes."""
    if passes < 1:
        raise ValueError(f"backward_passes_per_step={passes}: at least one pass precedes a step")


def names_of(named: NamedParameters | None, parameters: Parameters) -> dict[torch.Tensor, str]:
    """Return the name of each parameter; empty without names. ValueError if one is missing."""
    if named is None:
        return {}
    pairs = list(named)
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise ValueError(
            "named_parameters takes pairs of a name and a parameter, as model.named_parameters() "
            "gives them"
        )
    repeated = sorted(name for name, count in Counter(n for n, _ in pairs).items() if count > 1)
    if repeated:
        raise ValueError(f"named_parameters has more than one parameter of the names {repeated}")
    names = {parameter: name for name, parameter in pairs}
    missing = [tuple(one.shape) for one in parameters if one not in names]
    if missing:
        raise ValueError(
            "named_parameters lacks parameters of the optimizer: it has none for "
            f"{len(missing)} of them, of the shapes {missing}"
        )
    return names


def grouping_of(groups: int | Sequence[Parameters], parameters: Parameters) -> list[Parameters]:
    """Return the groups, without parameters that are alone. ValueError if it is no grouping."""
    wrong = f"groups={groups!r} is neither a number of groups nor a list of lists of parameters"
    if isinstance(groups, int):
        if groups < 0:
            raise ValueError(wrong)
        trained = [one for one in parameters if one.requires_grad]
        count = min(groups, len(trained))
        bounds = [len(trained) * i // count for i in range(count + 1)] if count else []
        return [trained[a:b] for a, b in pairwise(bounds)]
    grouping: list[Parameters] = []
    seen: set[int] = set()
    for group in groups:
        if not isinstance(group, Sequence) or not all(isinstance(p, torch.Tensor) for p in group):
            raise ValueError(wrong)
        ids = {id(parameter) for parameter in group}
        if len(ids) != len(group) or ids & seen:
            raise ValueError("groups has a parameter more than once")
        seen |= ids
        grouping.append(list(group))
    return grouping


def check_local(sync_every: int, **others: Any) -> None:
    """Raise ValueError for a number of local steps that can't be, or an option that is not for it.

    `others` are options of DistributedOptimizer, op as a ReduceOp and compression as its part that
    runs in Python.
    """
    if isinstance(sync_every, bool) or not isinstance(sync_every, int) or sync_every < 1:
        raise ValueError(f"sync_every={sync_every!r}: expected a number of steps, at least 1")
    if others["op"] is not ReduceOp.AVERAGE:
        raise ValueError(f"sync_every needs op=Average, not {others['op'].label}")
    if isinstance(others["compression"], PowerSGD):
        raise ValueError(f"sync_every is not possible with {others['compression']!r}")
    reasons = {
        "gradient_predivide_factor": (1.0, "reduces no gradients"),
        "num_groups": (0, "reduces no gradients"),
        "groups": (None, "reduces no gradients"),
        "sparse_as_dense": (False, "reduces no gradients"),
        "overlap_step": (False, "leaves nothing to overlap with"),
        "gradients_ready": (None, "leaves each rank its own gradients"),
    }
    for name, (default, reason) in reasons.items():
        value = others[name]
        if value != default and (name, value) != ("gradients_ready", "step"):
            raise ValueError(f"{name}={value!r} is not possible with sync_every, which {reason}")
