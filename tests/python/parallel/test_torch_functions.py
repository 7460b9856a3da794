"""Sending models, optimizer state and objects to all ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import horoscale.torch as hvd

OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1 * (hvd.rank() + 1)),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1 * (hvd.rank() + 1), momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1 * (hvd.rank() + 1))),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1 * (hvd.rank() + 1), amsgrad=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1 * (hvd.rank() + 1)),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1 * (hvd.rank() + 1), centered=True),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1 * (hvd.rank() + 1)),
}


def make_model() -> nn.Module:
    torch.manual_seed(hvd.rank())
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2, bias=False))


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3) * torch.tensor([[1.0], [2.0]])).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)


def same_everywhere(value: Any) -> bool:
    """Whether an object, including its tensors, equals that of rank 0 on all ranks."""
    values = hvd.allgather_object(value)
    return all(flat(one) == flat(values[0]) for one in values)


def flat(tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return (str(tree.dtype), tree.tolist())
    if isinstance(tree, dict):
        return {key: flat(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [flat(value) for value in tree]
    return tree


@pytest.mark.conformance
@pytest.mark.parametrize("kind", ["state_dict", "named_parameters"])
def test_broadcast_parameters(kind: str) -> None:
    model = make_model()
    own = copy.deepcopy(model.state_dict())
    root = hvd.size() - 1
    hvd.broadcast_parameters(getattr(model, kind)(), root_rank=root)
    sent = dict(getattr(model, kind)())
    assert same_everywhere({name: sent[name].detach() for name in sent})
    if hvd.rank() == root:
        assert flat(model.state_dict()) == flat(own)


@pytest.mark.parametrize("wrong", [[1], {"a": 1}, [("a", None)]], ids=str)
def test_broadcast_of_what_is_no_tensor(wrong: Any) -> None:
    with pytest.raises(ValueError, match="broadcast_object"):
        hvd.broadcast_parameters(wrong, root_rank=0)


@pytest.mark.conformance
@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "distributed"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_broadcast_optimizer_state(kind: str, wrapped: bool) -> None:
    """Only the root has a state; then all have it, including options, and continue equally."""
    model = make_model()
    optimizer = OPTIMIZERS[kind](list(model.parameters()))
    if hvd.rank() == 0:
        step(model, optimizer)
    if wrapped:
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    before = flat(optimizer.state_dict())
    parameters = copy.deepcopy(model.state_dict())
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert same_everywhere(optimizer.state_dict())
    assert flat(model.state_dict()) == flat(parameters)
    if hvd.rank() == 0:
        assert flat(optimizer.state_dict()) == before
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    step(model, optimizer)
    assert same_everywhere(model.state_dict())


def test_a_scheduler_sees_the_new_options() -> None:
    model = make_model()
    optimizer = OPTIMIZERS["momentum"](list(model.parameters()))
    scheduler = torch.optim.lr_scheduler.MultiplicativeLR(optimizer, lambda _: 0.5)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    step(model, optimizer)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)


def test_root_within_a_process_set(need_ranks: None) -> None:
    last = hvd.size() - 1
    others = hvd.add_process_set(range(1, hvd.size()))
    if others.included():
        value = torch.full((3,), float(hvd.rank()))
        hvd.broadcast_parameters({"value": value}, root_rank=last, process_set=others)
        assert value.tolist() == [float(last)] * 3
        model = make_model()
        optimizer = OPTIMIZERS["momentum"](list(model.parameters()))
        hvd.broadcast_optimizer_state(optimizer, last, process_set=others)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * (last + 1))
    assert hvd.remove_process_set(others)


@pytest.mark.conformance
def test_objects(name: str) -> None:
    own = {"rank": hvd.rank(), "data": list(range(hvd.rank() * 100)), "tensor": torch.ones(3)}
    for root in range(hvd.size()):
        got = hvd.broadcast_object(own, root_rank=root, name=name)
        assert got["rank"] == root
        assert len(got["data"]) == root * 100
    everything = hvd.allgather_object(own, name=name)
    assert [one["rank"] for one in everything] == list(range(hvd.size()))


def test_memory_formats_that_differ_between_the_ranks(name: str) -> None:
    """Elements are sent by index, in any memory layout."""
    values = torch.arange(81.0).view(3, 3, 3, 3)
    own = values + hvd.rank()
    if hvd.rank() == 0:
        own = own.contiguous(memory_format=torch.channels_last)
    strides = own.stride()
    total = hvd.allreduce_(own.clone(), op=hvd.Sum, name=name)
    assert torch.equal(total, hvd.size() * values + sum(range(hvd.size())))
    hvd.broadcast_parameters({name: own}, root_rank=0)
    assert torch.equal(own, values)
    assert own.stride() == strides
