"""DistributedOptimizer(sync_every=...): local SGD and DiLoCo, compared with one process."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from support.local_sgd import (
    OUTER,
    assert_alike,
    assert_same_bits,
    same_rounds,
    train,
    train_alone,
)
from support.torch_training import OPTIMIZERS, loss_of, make_model, sgd, wrap
from torch import nn

import horoscale.torch as hvd

pytestmark = pytest.mark.conformance


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize("inner", OPTIMIZERS)
def test_trains_as_one_process_does(inner: str, outer: str, every: int) -> None:
    model = make_model()
    optimizer = wrap(model, OPTIMIZERS[inner], sync_every=every, outer_optimizer=OUTER[outer])
    train(model, optimizer, range(7))
    assert optimizer.local_steps == 7 % every
    optimizer.synchronize_parameters()
    assert optimizer.local_steps == 0
    assert_same_bits(model)
    rounds = same_rounds(7, every, hvd.size())
    assert_alike(model, train_alone(OPTIMIZERS[inner], OUTER[outer], rounds))


@pytest.mark.parametrize("seed", range(5))
def test_rounds_that_end_anywhere(seed: int) -> None:
    """Random lengths, ended by their number of steps or by the script, with any step counts."""
    chance = random.Random(seed)
    every = chance.randint(1, 6)
    outer = OUTER[chance.choice(list(OUTER))]
    model = make_model()
    optimizer = wrap(model, sync_every=every, outer_optimizer=outer)
    rounds, taken = [], [0] * hvd.size()
    for _ in range(4):
        steps = [chance.randint(0, every) for _ in range(hvd.size())]
        own, done = steps[hvd.rank()], taken[hvd.rank()]
        train(model, optimizer, range(done, done + own))
        if own < every:  # ranks that have taken all steps have synchronized
            optimizer.synchronize_parameters()
        assert_same_bits(model)
        taken = [a + b for a, b in zip(taken, steps, strict=True)]
        if any(steps):
            rounds.append(steps)
    assert_alike(model, train_alone(sgd, outer, rounds or [[0] * hvd.size()]))


def test_between_synchronizations_ranks_are_apart(need_ranks: None) -> None:
    model = make_model()
    optimizer = wrap(model, sync_every=3)
    before = hvd.metrics()["process_sets"]["0"]["operations"]
    train(model, optimizer, range(2))
    assert hvd.metrics()["process_sets"]["0"]["operations"] == before
    first = hvd.allgather(model[0].weight.detach()[:1])
    assert not torch.equal(first[0], first[1])
    train(model, optimizer, range(2, 3))
    assert_same_bits(model)


def test_nothing_is_synchronized_twice() -> None:
    model = make_model()
    optimizer = wrap(model, sync_every=2, outer_optimizer=OUTER["nesterov"])
    train(model, optimizer, range(2))
    reached = [one.detach().clone() for one in model.parameters()]
    optimizer.synchronize_parameters()  # without steps, momentum has no effect
    for one, expected in zip(model.parameters(), reached, strict=True):
        assert torch.equal(one, expected)


def test_process_set(process_set: hvd.ProcessSet) -> None:
    model = make_model()
    optimizer = wrap(model, sync_every=2, process_set=process_set)
    train(model, optimizer, range(4))
    if not process_set.included():
        assert optimizer.local_steps == 0
        optimizer.synchronize_parameters()
        alone = make_model()
        plain = sgd(list(alone.parameters()))
        train(alone, plain, range(4))
        assert_alike(model, alone)
        return
    ranks = process_set.ranks
    expected = train_alone(
        sgd,
        None,
        same_rounds(4, 2, len(ranks)),
        loss=lambda model, step, member: loss_of(model, step, ranks[member]),
    )
    assert_alike(model, expected)


def test_parameters_that_are_broadcast_after_the_optimizer_was_made() -> None:
    model = make_model()
    with torch.no_grad():
        for one in model.parameters():
            one.add_(hvd.rank())
    optimizer = wrap(model, sync_every=2)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    train(model, optimizer, range(4))
    assert_alike(model, train_alone(sgd, None, same_rounds(4, 2, hvd.size())))


def test_weights_of_ranks() -> None:
    weights = [2 * (rank + 1) / (hvd.size() + 1) for rank in range(hvd.size())]
    model = make_model()
    optimizer = wrap(model, sync_every=2)
    optimizer.set_local_scale(weights[hvd.rank()])
    train(model, optimizer, range(4))
    assert_same_bits(model)
    assert_alike(model, train_alone(sgd, None, same_rounds(4, 2, hvd.size()), weights))
    with pytest.raises(ValueError, match="finite"):
        optimizer.set_local_scale(float("nan"))


class Halved(hvd.Compression.none):
    """A user-defined compressor."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor / 2, 2

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor * ctx


@pytest.mark.parametrize(
    "compression",
    [
        hvd.Compression.fp16,
        hvd.Compression.bf16,
        hvd.Compression.int8,
        {"0.*": hvd.Compression.int4},
        Halved,
    ],
    ids=["fp16", "bf16", "int8", "table", "own"],
)
def test_compression(compression: Any) -> None:
    """On one host nothing is rounded; test_hosts_collectives.py uses several."""
    model = make_model()
    optimizer = wrap(model, sync_every=2, compression=compression)
    train(model, optimizer, range(4))
    assert_same_bits(model)
    assert_alike(model, train_alone(sgd, None, same_rounds(4, 2, hvd.size())))


def test_several_dtypes_and_shapes() -> None:
    """Including a channels_last weight, a scalar and a parameter without elements."""
    torch.manual_seed(3)
    dtypes = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    parameters = [nn.Parameter(torch.randn(3, dtype=dtype)) for dtype in dtypes]
    parameters.append(nn.Parameter(torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)))
    parameters += [nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(0))]
    before = [one.detach().clone() for one in parameters]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.5), sync_every=2)
    for _ in range(2):
        for one in parameters:
            one.grad = torch.full_like(one, float(hvd.rank()))
        optimizer.step()
    # Each step moves by half the rank; the average rank is half of the last one.
    for one, start in zip(parameters, before, strict=True):
        tolerance = 0.05 if one.dtype in (torch.float16, torch.bfloat16) else 1e-5
        torch.testing.assert_close(
            one.detach(), start - (hvd.size() - 1) / 2, rtol=tolerance, atol=tolerance
        )
        assert one.stride() == start.stride()


@pytest.mark.parametrize("way", ["passes", "no_sync"])
def test_gradient_accumulation(way: str) -> None:
    model = make_model()
    optimizer = wrap(model, sync_every=2, backward_passes_per_step=2)
    optimizer.set_backward_passes_per_step(2)
    for step in range(4):
        optimizer.zero_grad()
        if way == "no_sync":
            with optimizer.no_sync():
                loss_of(model, 2 * step, hvd.rank()).backward()
        else:
            loss_of(model, 2 * step, hvd.rank()).backward()
        loss_of(model, 2 * step + 1, hvd.rank()).backward()
        optimizer.step()

    def both(model: nn.Module, step: int, rank: int) -> torch.Tensor:
        return loss_of(model, 2 * step, rank) + loss_of(model, 2 * step + 1, rank)

    assert_alike(model, train_alone(sgd, None, same_rounds(4, 2, hvd.size()), loss=both))


def test_closure_and_clipping() -> None:
    """step() returns the closure's loss; synchronize() leaves gradients unchanged."""
    model, clipped = make_model(), make_model()
    optimizer, other = wrap(model, sync_every=2), wrap(clipped, sync_every=2)
    for step in range(4):

        def closure(step: int = step) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, step, hvd.rank())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            return loss

        assert optimizer.step(closure).ndim == 0
        other.zero_grad()
        loss_of(clipped, step, hvd.rank()).backward()
        other.synchronize()
        nn.utils.clip_grad_norm_(clipped.parameters(), 0.1)
        with other.skip_synchronize():
            other.step()
    assert_same_bits(model)
    assert_alike(clipped, model)


def test_sparse_gradients() -> None:
    """They stay on their rank, whose optimizer must support them; changes are dense."""
    torch.manual_seed(1)
    table = nn.Embedding(5, 3, sparse=True).double()
    before = table.weight.detach().clone()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters(), sync_every=1
    )
    table(torch.tensor([hvd.rank() % 5])).sum().backward()
    assert table.weight.grad.is_sparse
    optimizer.step()
    expected = before.clone()
    for rank in range(hvd.size()):
        expected[rank % 5] -= 1 / hvd.size()
    torch.testing.assert_close(table.weight.detach(), expected)


def test_uneven_data(need_ranks: None) -> None:
    """A rank with less data ends its round and joins; all get the last one's values."""
    outer = OUTER["nesterov"]
    model = make_model()
    optimizer = wrap(model, sync_every=2, outer_optimizer=outer)
    train(model, optimizer, range(3 if hvd.rank() == 0 else 6))
    optimizer.synchronize_parameters()
    last = hvd.join()
    hvd.broadcast_parameters(model.state_dict(), last)
    hvd.broadcast_optimizer_state(optimizer, last)
    others = hvd.size() - 1
    rounds = [[2] + [2] * others, [1] + [2] * others, [0] + [2] * others]
    assert_alike(model, train_alone(sgd, outer, rounds))
    # All continue together, with the same momentum.
    train(model, optimizer, range(6, 8))
    assert_same_bits(model)
