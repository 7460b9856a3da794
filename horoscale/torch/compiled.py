"""The collectives in code compiled by torch.compile.

They replace those of collectives.py, with the same names and outcomes. The compiler traces these
functions and inserts the operators of operators.py into its graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import Any

import torch

from horoscale import common
from horoscale.common.arguments import set_id
from horoscale.torch import operators
from horoscale.torch.collectives import Call, Reduction, Tensors
from horoscale.torch.handles import Handle, Outcome


class Finished(Handle):
    """The handle of an operation that has completed."""

    __slots__ = ()

    def __init__(self, outcome: Outcome) -> None:
        """Hold the result."""
        self._operation = self._complete = None
        self._outcome = outcome

    def wait(self) -> Outcome:
        """Return the result."""
        return self._outcome

    def then(self, change: Callable[[Outcome], Outcome]) -> Handle:
        """Apply `change` to the result."""
        self._outcome = change(self._outcome)
        return self


def allreduce(tensors: Tensors, reduction: Reduction, call: Call, in_place: bool = False) -> Handle:
    """Reduce each tensor over the ranks. The outcome is the list of results."""
    arguments = *_arithmetic(reduction), *_identity(call)
    results = _operator("allreduce")(_inputs(tensors, in_place), *arguments)
    return Finished(_delivered(tensors, results, in_place))


def broadcast(tensors: Tensors, root_rank: int, call: Call, in_place: bool = False) -> Handle:
    """Broadcast the root's tensors. The outcome is the list of results."""
    results = _operator("broadcast")(_inputs(tensors, in_place), root_rank, *_identity(call))
    return Finished(_delivered(tensors, results, in_place))


def allgather(tensors: Tensors, call: Call) -> Handle:
    """Concatenate each tensor's rows over the ranks. The outcome is the list of results."""
    members = common.size(call.process_set)
    results = _operator("allgather")(list(tensors), members, *_identity(call))
    return Finished(results[:-1])


def alltoall(
    tensor: torch.Tensor, splits: Sequence[int] | torch.Tensor | None, call: Call
) -> Handle:
    """Send rows to each rank. The outcome is (result, row counts received from each rank)."""
    if splits is not None and not isinstance(splits, torch.Tensor):
        # index() would make the compiler specialize on a dynamic size.
        splits = torch.tensor([r if isinstance(r, int) else index(r) for r in splits])
    members = common.size(call.process_set)
    result, received = _operator("alltoall")(tensor, splits, members, *_identity(call))
    return Finished((result, received))


def reducescatter(
    tensors: Tensors, reduction: Reduction, call: Call, splits: Sequence[int] | None = None
) -> Handle:
    """Reduce each tensor and scatter its rows. The outcome is the list of this rank's rows."""
    place = common.size(call.process_set), common.rank(call.process_set)
    arguments = *_arithmetic(reduction), *_identity(call)
    to_each = None if splits is None else list(splits)
    return Finished(_operator("reducescatter")(list(tensors), *place, to_each, *arguments))


def _operator(name: str) -> Any:
    if operators.PROBLEM is not None:
        raise NotImplementedError(operators.PROBLEM)
    return getattr(torch.ops.horoscale, name)


def _arithmetic(reduction: Reduction) -> tuple[int, float, float, int]:
    scales = float(reduction.prescale), float(reduction.postscale)
    return reduction.op.value, *scales, int(reduction.encoding)


def _identity(call: Call) -> tuple[int, str | None, int]:
    number = call.process_set.process_set_id  # the compiler guards on this value
    if number is None:
        number = set_id(call.process_set)  # raises the specific error
    return number, call.name, call.priority


def _inputs(tensors: Tensors, in_place: bool) -> list[torch.Tensor]:
    return [tensor.detach() for tensor in tensors] if in_place else list(tensors)


def _delivered(tensors: Tensors, results: Tensors, in_place: bool) -> Tensors:
    if not in_place:
        return results
    with torch.no_grad():
        for tensor, result in zip(tensors, results, strict=True):
            tensor.copy_(result)
    return tensors
