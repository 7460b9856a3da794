"""Helpers for the public collectives: one tensor or a group, and the fast path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from horoscale._core import Template
from horoscale.common import prepared
from horoscale.torch import collectives, compiled
from horoscale.torch.collectives import Tensors
from horoscale.torch.compiling import is_compiling, outside_graph
from horoscale.torch.tensors import is_plain

Splits = Sequence[int] | torch.Tensor | None

for _prepare in (
    prepared.prepared_allreduce,
    prepared.prepared_broadcast,
    prepared.prepared_gather,
    prepared.prepared_reducescatter,
):
    outside_graph(_prepare)


def is_followed(tensor: torch.Tensor) -> bool:
    """Return whether autograd tracks a tensor."""
    return tensor.requires_grad and torch.is_grad_enabled()


def run(template: Template, source: torch.Tensor, target: torch.Tensor) -> None:
    """Run an operation on the memory of two plain tensors."""
    address = source.data_ptr()
    # An empty tensor has a null address, but the library needs a nonzero one. It writes nothing
    # there.
    if source is target:
        template.run(address, address or 1, source.untyped_storage())
        return
    memory = source.untyped_storage(), target.untyped_storage()
    template.run(address, target.data_ptr() or 1, memory)


def is_plain_move(tensor: torch.Tensor, out: torch.Tensor) -> bool:
    """Return whether values can be copied between the tensors' memory without conversion."""
    return (
        not is_compiling()
        and is_plain(tensor)
        and is_plain(out)
        and not (out.requires_grad or is_followed(tensor))
    )


def only(results: Tensors) -> torch.Tensor:
    """Return the result of an operation on one tensor."""
    [result] = results
    return result


def as_group(tensors: Tensors) -> list[torch.Tensor]:
    """Return the tensors of a grouped operation; raise ValueError if there are none."""
    if isinstance(tensors, torch.Tensor):
        raise ValueError("a grouped operation takes a list of tensors, not one tensor")
    given = list(tensors)
    if not given:
        raise ValueError("a grouped operation needs at least one tensor")
    return given


def split_list(splits: Splits) -> Sequence[int] | None:
    """Return splits in the form that the collectives accept. Raises ValueError if invalid."""
    if not isinstance(splits, torch.Tensor):
        return splits
    check_counts(splits)
    return splits.tolist()


def check_counts(splits: torch.Tensor) -> None:
    """Raise ValueError unless the tensor can contain row counts."""
    dtype = splits.dtype
    counts = not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)
    if not counts or splits.dim() != 1 or splits.device.type != "cpu":
        raise ValueError(
            "splits= takes a 1-d tensor of integers on the CPU, not one of shape "
            f"{tuple(splits.shape)} and {dtype} on {splits.device}"
        )


def how() -> Any:
    """Return the module that implements the collectives in the current context."""
    return compiled if is_compiling() else collectives
