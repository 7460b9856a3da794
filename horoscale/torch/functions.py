"""Broadcast of a model's parameters and of an optimizer's state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch

from horoscale import common
from horoscale.common import allgather_object, broadcast_object
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.torch.compiling import outside_graph
from horoscale.torch.handles import synchronize
from horoscale.torch.movement import broadcast_async_

# The functions for objects do not need torch, but Horovod scripts import them from here.
__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]


@outside_graph
def broadcast_parameters(
    params: Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Broadcast the root's parameters to all ranks, in place.

    Args:
        params: model.state_dict() or model.named_parameters(), with the same names on all ranks.
        root_rank: the global rank of the sender.
        process_set: the ranks that take part.

    Raises:
        ValueError: an argument is invalid, or hvd.init() was not called.
        MismatchError: the parameters with the same name differ in shape or dtype between ranks.
        HorovodInternalError: the operation failed; RankFailedError if a rank did.
    """
    pairs = sorted(params.items()) if isinstance(params, Mapping) else list(params)
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[1], torch.Tensor):
            raise ValueError(
                "broadcast_parameters() takes a state_dict or pairs of a name and a tensor, not "
                f"{pair!r}: use broadcast_object() for other values"
            )
    handles = [
        broadcast_async_(tensor, root_rank, f"broadcast_parameters.{name}", process_set)
        for name, tensor in pairs
    ]
    for handle in handles:
        synchronize(handle)


@outside_graph
def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Broadcast the root's optimizer state and options, such as the learning rate.

    The other ranks need no state yet. Only the root's state is read. No step is run to create
    state.

    Args:
        optimizer: an optimizer whose parameters have the same order and shapes on all ranks.
        root_rank: the global rank of the sender.
        model: accepted for compatibility with Horovod; not needed.
        process_set: the ranks that take part.

    Raises:
        ValueError: the optimizers' parameters differ, another argument is invalid, or
            hvd.init() was not called.
        HorovodInternalError: the operation failed; RankFailedError if a rank did.
    """
    is_root = common.rank() == root_rank
    tensors: list[torch.Tensor] = []

    def take_out(tensor: torch.Tensor) -> _Missing:
        tensors.append(tensor)
        return _Missing(tensor.shape, tensor.dtype, tensor.device.type)

    def make_room(missing: _Missing) -> torch.Tensor:
        tensors.append(torch.empty(missing.shape, dtype=missing.dtype, device=missing.device))
        return tensors[-1]

    state = _replace(optimizer.state_dict(), torch.Tensor, take_out) if is_root else None
    state = common.broadcast_object(state, root_rank, "broadcast_optimizer_state", process_set)
    if not is_root:
        state = _replace(state, _Missing, make_room)
    handles = [
        broadcast_async_(tensor, root_rank, f"broadcast_optimizer_state.{i}", process_set)
        for i, tensor in enumerate(tensors)
    ]
    for handle in handles:
        synchronize(handle)
    if not is_root:
        optimizer.load_state_dict(state)


class _Missing(NamedTuple):
    """A placeholder for a tensor that is sent separately."""

    shape: torch.Size
    dtype: torch.dtype
    device: str  # the type; each rank uses its own index


def _replace(tree: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Return nested dicts, lists and tuples with `change` applied to all values of a `kind`."""
    if isinstance(tree, kind):
        return change(tree)
    if isinstance(tree, dict):
        return {key: _replace(value, kind, change) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_replace(value, kind, change) for value in tree)
    return tree
