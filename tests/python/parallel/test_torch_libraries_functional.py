"""Functional collectives, and what torch.compile makes of collectives, over the backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from support.torch_libraries import MARKS, default_group, same_as_gloo

import horoscale.torch as hvd

pytestmark = MARKS

Step = Callable[[torch.Tensor, torch.Tensor], list[torch.Tensor]]


def each_functional_collective(rows: torch.Tensor, parts: torch.Tensor) -> list[torch.Tensor]:
    """Those of one tensor."""
    group: Any = dist.group.WORLD
    size = dist.get_world_size()
    total = functional.all_reduce(rows * 2, "sum", group)
    gathered = functional.all_gather_tensor(total, 0, group)
    return [
        total + 1,
        gathered + 0,
        functional.reduce_scatter_tensor(parts * 3, "sum", 0, group),
        functional.broadcast(parts + 1, 1, group),
        functional.all_to_all_single(parts * 1.0, None, None, group),
        functional.permute_tensor(rows, [(rank + 1) % size for rank in range(size)], group),
    ]


def coalesced_ones(rows: torch.Tensor, parts: torch.Tensor) -> list[torch.Tensor]:
    """Those of several tensors, which Gloo lacks."""
    group: Any = dist.group.WORLD
    both = [parts, parts * 2]
    return [
        *functional.all_reduce_coalesced([rows, parts], "sum", group),
        *functional.all_gather_into_tensor_coalesced([rows, parts], group),
        *functional.reduce_scatter_tensor_coalesced(both, "sum", [0, 0], group),
    ]


def ordinary_ones(rows: torch.Tensor, parts: torch.Tensor) -> list[torch.Tensor]:
    """The compiler replaces these by functional ones."""
    size = dist.get_world_size()
    total, gathered = rows * 1, rows.new_empty(size * len(rows))
    scattered, dealt = parts.new_empty(len(parts) // size), torch.empty_like(parts)
    each = [torch.empty_like(rows) for _ in range(size)]
    dist.all_reduce(total)
    dist.all_gather_into_tensor(gathered, total)
    dist.reduce_scatter_tensor(scattered, parts * 1)
    dist.all_to_all_single(dealt, parts * 1)
    dist.all_gather(each, rows)
    return [total, gathered, scattered, dealt, *each]


def with_gradients(rows: torch.Tensor, parts: torch.Tensor) -> list[torch.Tensor]:
    """Those with gradients."""
    group: Any = dist.group.WORLD
    gathered = functional.all_gather_tensor_autograd(rows, 0, group)
    scattered = functional.reduce_scatter_tensor_autograd(gathered * gathered, "sum", 0, group)
    dealt = functional.all_to_all_single_autograd(parts * parts, None, None, group)
    return [scattered.sum() + dealt.sum()]


def given() -> tuple[torch.Tensor, torch.Tensor]:
    rank, size = hvd.rank(), hvd.size()
    return torch.arange(4.0) + rank, torch.arange(size * 3.0) + 10 * rank


def compiled(step: Step) -> Step:
    return torch.compile(step, backend="aot_eager", fullgraph=True)


def test_functional_collectives() -> None:
    same_as_gloo(lambda: each_functional_collective(*given()), integers=True)
    same_as_gloo(lambda: compiled(each_functional_collective)(*given()), integers=True)


@pytest.mark.parametrize("step", [coalesced_ones, ordinary_ones])
def test_compiled_and_not(step: Step) -> None:
    with default_group("horoscale"):
        expected = [one.clone() for one in step(*given())]
        assert torch.equal(expected[0], sum(torch.arange(4.0) + one for one in range(hvd.size())))
        got = compiled(step)(*given())
    for ours, wanted in zip(got, expected, strict=True):
        assert torch.equal(ours, wanted)


def test_gradients_of_functional_collectives() -> None:
    """Of the sum over all ranks of (x², gathered and scattered) and y²: by hand."""
    for step in (with_gradients, compiled(with_gradients)):
        rows, parts = (one.requires_grad_() for one in given())
        with default_group("horoscale"):
            step(rows, parts)[0].backward()
        assert torch.equal(rows.grad, 2 * hvd.size() * rows.detach())
        assert torch.equal(parts.grad, 2 * parts.detach())


def test_inductor() -> None:
    from torch._inductor import config

    with default_group("horoscale"), config.patch({"fallback_by_default": True}):
        expected = [one.clone() for one in each_functional_collective(*given())]
        got = torch.compile(each_functional_collective, fullgraph=True)(*given())
    for ours, wanted in zip(got, expected, strict=True):
        assert torch.equal(ours, wanted)
