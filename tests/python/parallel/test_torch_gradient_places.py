"""Gradients are moved to their places in shared memory from anywhere, and only there."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

import horoscale.torch as hvd
from horoscale.torch import priorities

SMALL, LARGE = 10, 100_000  # copied through banks, and folded in the ranks' memory
EVERY_SIZE = pytest.mark.parametrize("size", [SMALL, LARGE])


def wrap(parameters: Sequence[nn.Parameter], **options: Any) -> Any:
    return hvd.DistributedOptimizer(torch.optim.SGD(list(parameters), 1.0), **options)


def share() -> float:
    return hvd.rank() + 1.0


def mean() -> float:
    """The mean of the ranks' shares."""
    return (hvd.size() + 1) / 2


@EVERY_SIZE
def test_conjugates(size: int) -> None:
    """They are flags on memory with other values."""
    parameter = nn.Parameter(torch.zeros(size, dtype=torch.complex64))
    optimizer = wrap([parameter])
    (parameter.conj() * (2 + 3j) * share()).real.sum().backward()
    optimizer.synchronize()
    wanted = torch.full((size,), mean() * (2 + 3j))
    assert torch.equal(torch.view_as_real(parameter.grad), torch.view_as_real(wanted))


@EVERY_SIZE
def test_members_of_a_group_frozen_in_turn(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same number of gradients may have different shapes."""
    monkeypatch.setattr(priorities, "_of_parameters", {})
    parameters = [nn.Parameter(torch.zeros(size * (i + 1))) for i in range(3)]
    for parameter in parameters:
        hvd.set_priority(parameter, 0)
    optimizer = wrap(parameters, groups=[parameters])
    for step, frozen in enumerate((None, 2, 1, 0, 2), 1):
        optimizer.zero_grad()
        for i, parameter in enumerate(parameters):
            parameter.requires_grad_(i != frozen)
        sum((one * share() * step).sum() for one in parameters).backward()
        optimizer.synchronize()
        for i, parameter in enumerate(parameters):
            if i == frozen:
                assert parameter.grad is None
            else:
                assert torch.equal(parameter.grad, torch.full_like(parameter, mean() * step))


@EVERY_SIZE
@pytest.mark.parametrize("used", [True, False], ids=["used", "unused"])
def test_a_parameter_that_has_become_smaller(size: int, used: bool) -> None:
    parameter = nn.Parameter(torch.zeros(size, 4))
    optimizer = wrap([parameter])
    parameter.data = parameter.data[: size // 2].clone()
    if used:
        (parameter * share()).sum().backward()
    optimizer.synchronize()
    assert torch.equal(parameter.grad, torch.full((size // 2, 4), mean() if used else 0.0))


def wrap_layer() -> tuple[nn.Linear, Any]:
    """A layer of zeros, whose steps overlap from the second on."""
    model = nn.Linear(500, 500, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    return model, hvd.DistributedOptimizer(optimizer, overlap_step=True)


def test_gradients_of_the_user_are_copied_at_once() -> None:
    """Their memory may be reused as soon as an overlapped step returns."""
    model, optimizer = wrap_layer()
    mine = torch.empty_like(model.weight)
    for step in range(1, 4):
        mine.fill_(share())
        model.weight.grad = mine
        optimizer.step()
        mine.fill_(float("nan"))
        assert torch.equal(model.weight, torch.full_like(mine, -mean() * step))
        optimizer.zero_grad()


def test_an_overlapped_step_that_the_ranks_refuse_leaves_their_gradients(need_ranks: None) -> None:
    model, optimizer = wrap_layer()
    batch = torch.full((1, 500), share())
    for step in range(2):
        optimizer.zero_grad()
        if step == 1 and hvd.rank() == 0:
            model.weight.data = model.weight.data[:400].clone()
        model(batch).sum().backward()
        optimizer.step()
    assert optimizer._overlap.outstanding
    with pytest.raises(hvd.MismatchError):
        optimizer.finish_step()
    assert torch.equal(model.weight.grad, batch.expand_as(model.weight))


def test_an_optimizer_that_is_dropped_while_its_gradients_are_reduced(need_ranks: None) -> None:
    """Others write to the places of this rank's gradients, which are unused until then."""
    length = 1_000_000
    late = hvd.size() - 1
    parameter = nn.Parameter(torch.zeros(length))
    optimizer: Any = wrap([parameter], named_parameters=[("dropped", parameter)])
    if hvd.rank() == late:
        hvd.barrier()
    (parameter * share()).sum().backward()
    if hvd.rank() != late:
        del parameter, optimizer
        gc.collect()
        others = hvd.empty_shared(length).fill_(7.0)
        hvd.barrier()
    else:
        optimizer.synchronize()
        assert torch.equal(parameter.grad, torch.full((length,), mean()))
    hvd.barrier()
    if hvd.rank() != late:
        assert torch.equal(others, torch.full((length,), 7.0))
