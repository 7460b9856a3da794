"""Random numbers that are equal on all ranks, or differ."""

from __future__ import annotations

import torch
from support.parallel import MARKS, mesh
from torch.utils.checkpoint import checkpoint

import horoscale.torch as hvd
import horoscale.torch.parallel as par

pytestmark = MARKS


def everyones() -> list[float]:
    return hvd.allgather_object(float(torch.rand(())))


def test_numbers_are_alike_along_tp_until_a_fork() -> None:
    with mesh(tp=2 if hvd.size() % 2 == 0 else 3) as made:
        par.rng.seed(5, made)
        drawn = everyones()
        with par.rng.fork("tp"):
            forked = everyones()
        after = everyones()
        with par.rng.fork(made.tp):
            again = everyones()
        for numbers in (drawn, after):
            for one in range(hvd.size()):
                for other in range(hvd.size()):
                    same = made.coordinates_of(one)["dp"] == made.coordinates_of(other)["dp"]
                    assert (numbers[one] == numbers[other]) == same
        assert len({*forked, *again, *drawn, *after}) == 2 * (hvd.size() + made.dp.size)
        par.rng.seed(5, made)
        assert everyones() == drawn


def test_shards_begin_differently_and_with_the_spread_of_the_whole() -> None:
    with mesh(tp=hvd.size()) as made:
        layer = par.RowParallelLinear(400 * hvd.size(), 50, made.tp)
        spread = hvd.allgather_object(float(layer.weight.detach().abs().max()))
        assert len(set(spread)) == hvd.size()
        bound = (400 * hvd.size()) ** -0.5
        assert 0.99 * bound < max(spread) <= bound


def test_checkpoints_repeat_what_is_dropped() -> None:
    with mesh(tp=hvd.size()) as made:
        par.rng.seed(1, made)
        attention = par.ParallelAttention(24, 12, made.tp, dropout=0.5)
        x = torch.randn(2, 5, 24, requires_grad=True)
        state = torch.get_rng_state()
        results = []
        for run in (attention, lambda x: checkpoint(attention, x, use_reentrant=False)):
            torch.set_rng_state(state)
            attention.zero_grad()
            y = run(x)
            y.square().sum().backward()
            results.append((y.detach(), attention.qkv.weight.grad.clone()))
        for plain, repeated in zip(*results, strict=True):
            assert torch.equal(plain, repeated)


def test_layers_are_made_on_the_meta_device() -> None:
    with mesh(tp=hvd.size()) as made, torch.device("meta"):
        assert par.ColumnParallelLinear(8, 8, made.tp).weight.is_meta
