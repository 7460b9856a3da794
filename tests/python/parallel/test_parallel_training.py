"""Transformers divided over tp and dp train as one process does."""

from __future__ import annotations

import copy

import pytest
import torch
from support.parallel import EXACT, MARKS, adamw, mesh, same_state, train
from support.parallel_models import Shape, divided, single
from torch import nn

import horoscale.torch as hvd
import horoscale.torch.parallel as par

pytestmark = MARKS

SHAPES = {
    "gpt": Shape(),
    "llama": Shape(gated=True, bias=False, heads=4, kv_heads=4),
    "one layer": Shape(layers=1, heads=8, kv_heads=4, hidden=31),
}


def divisors() -> list[int]:
    return [n for n in (1, 2, 3, 4) if hvd.size() % n == 0]


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch)


def batches(shape: Shape, samples: int) -> list[torch.Tensor]:
    return [torch.randint(shape.words, (samples, shape.positions)) for _ in range(3)]


def own(batches: list[torch.Tensor], axis: par.Axis) -> list[torch.Tensor]:
    return [batch.chunk(axis.size)[axis.rank] for batch in batches]


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("kind", list(SHAPES))
def test_three_steps_of_adamw(kind: str, sequence_parallel: bool) -> None:
    shape = SHAPES[kind]
    for tp in divisors():
        if tp > shape.kv_heads:
            continue
        with mesh(tp=tp) as made:
            whole = single(shape)
            model = divided(shape, made.tp, sequence_parallel)
            par.load_whole_state_dict(model, whole.state_dict())
            data = batches(shape, 12)
            expected = train(whole, adamw(whole), loss_of, data)
            optimizer = par.DistributedOptimizer(adamw(model), model, made)
            got = train(model, optimizer, loss_of, own(data, made.dp))
            if made.dp.set is not None:
                got = hvd.allreduce(torch.tensor(got), process_set=made.dp.set).tolist()
            same_state(whole, model, expected, got)
            del optimizer


@pytest.mark.parametrize("norm_type", [2.0, 1.0, torch.inf])
def test_clipping_by_the_norm_of_the_whole(norm_type: float) -> None:
    shape = SHAPES["gpt"]
    with mesh(tp=2 if hvd.size() % 2 == 0 else 3) as made:
        whole = single(shape)
        model = divided(shape, made.tp, sequence_parallel=True)
        par.load_whole_state_dict(model, whole.state_dict())
        [data] = batches(shape, 12)[:1]
        whole(data).backward()
        expected = torch.nn.utils.clip_grad_norm_(whole.parameters(), 0.01, norm_type)
        optimizer = par.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model, made)
        [batch] = own([data], made.dp)
        model(batch).backward()
        optimizer.synchronize()
        norm = par.clip_grad_norm_(model, 0.01, made, norm_type)
        torch.testing.assert_close(norm, expected, **EXACT)
        gradients = {name: one.grad for name, one in whole.named_parameters()}
        got = par.whole_gradients(model)
        for name, gradient in gradients.items():
            torch.testing.assert_close(got[name], gradient, **EXACT)
        with optimizer.skip_synchronize():
            optimizer.step()
        del optimizer


def test_an_infinite_norm_is_an_error_where_it_shall_be() -> None:
    with mesh(tp=hvd.size()) as made:
        layer = par.ColumnParallelLinear(3, 8, made.tp)
        layer(torch.ones(2, 3)).sum().backward()
        if made.tp.rank == made.tp.size - 1:
            layer.weight.grad.fill_(torch.inf)
        with pytest.raises(RuntimeError, match="the norm of the gradients is inf"):
            par.clip_grad_norm_(layer, 1.0, made, error_if_nonfinite=True)


def test_an_overflow_on_one_rank_skips_the_step_on_all() -> None:
    with mesh(tp=hvd.size()) as made:
        layer = par.ColumnParallelLinear(3, 8, made.tp)
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)
        scaler = par.GradScaler(made, init_scale=16.0)
        before = layer.weight.detach().clone()
        for overflow in (True, False):
            optimizer.zero_grad()
            scaler.scale(layer(torch.ones(2, 3)).sum()).backward()
            if overflow and made.tp.rank == made.tp.size - 1:
                layer.weight.grad.fill_(torch.inf)
            scaler.step(optimizer)
            scaler.update()
            assert torch.equal(layer.weight, before) == overflow
        assert scaler.get_scale() == 8.0


def test_bfloat16_by_autocast() -> None:
    """Products and messages have 16 bits; gradients have the parameters' type."""
    shape = SHAPES["gpt"]
    with mesh(tp=2 if hvd.size() % 2 == 0 else 3) as made:
        whole, model = single(shape).float(), divided(shape, made.tp, True).float()
        par.load_whole_state_dict(model, whole.state_dict())
        [data] = batches(shape, 2)[:1]
        results = []
        for one in (whole, model):
            with torch.autocast("cpu", torch.bfloat16):
                loss = one(data)
            loss.backward()
            results.append(loss.detach().float())
        torch.testing.assert_close(results[1], results[0], rtol=0.02, atol=0.02)
        for name, gradient in par.whole_gradients(model).items():
            assert gradient.dtype == torch.float32
            expected = dict(whole.named_parameters())[name].grad
            torch.testing.assert_close(gradient, expected, rtol=0.1, atol=0.02)


def test_replicas_that_began_differently_are_made_alike() -> None:
    shape = SHAPES["gpt"]
    with mesh(tp=2 if hvd.size() % 2 == 0 else 1) as made:
        torch.manual_seed(hvd.rank())
        model = divided(shape, made.tp, True)
        par.broadcast_parameters(model, made)
        same = hvd.allgather_object(copy.deepcopy(model.state_dict()))
        coordinates = [made.coordinates_of(rank) for rank in range(hvd.size())]
        divided_names = set(par.state.shards_by_name(model))
        for one, where in zip(same, coordinates, strict=True):
            for name, value in model.state_dict().items():
                if name not in one:
                    continue
                if name not in divided_names or where["tp"] == made.tp.rank:
                    assert torch.equal(value, one[name]), name


def test_gradients_of_a_module_that_knows_nothing_of_the_sequence() -> None:
    with mesh(tp=hvd.size()) as made:
        layer, x = nn.Linear(3, 2), torch.randn(4 * hvd.size(), 3)
        layer(x).square().sum().backward()
        expected = [one.grad.clone() for one in layer.parameters()]
        layer.zero_grad()
        layer(par.sequence_scatter(x, made.tp)).square().sum().backward()
        par.reduce_gradients(layer.parameters(), made.tp)
        for one, gradient in zip(layer.parameters(), expected, strict=True):
            torch.testing.assert_close(one.grad, gradient, **EXACT)


def test_frozen_parameters_get_no_gradients() -> None:
    with mesh(tp=hvd.size()) as made:
        layer = torch.nn.Linear(4, 4)
        layer.bias.requires_grad_(False)
        layer.weight.grad = torch.ones(4, 4)
        par.reduce_gradients(layer.parameters(), made.tp)
        assert layer.bias.grad is None
        assert layer.weight.grad.unique().tolist() == [hvd.size()]
