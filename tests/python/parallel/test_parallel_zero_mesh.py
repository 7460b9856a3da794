"""Training state divided over dp and cp, of models that tp, cp or pp also divide."""

from __future__ import annotations

import copy

import pytest
import torch
from support.parallel import EXACT, MARKS, adamw, close, mesh
from support.parallel_models import Block, Shape, divided, single
from torch import nn

import horoscale.torch as hvd
import horoscale.torch.parallel as par

pytestmark = MARKS

ADAMW = {"lr": 0.01, "weight_decay": 0.1, "eps": 1e-5}
STAGES = pytest.mark.parametrize("stage", [1, 2, 3])


@STAGES
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "own memory"])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_with_tensor_parallelism(stage: int, shared: bool, sequence_parallel: bool) -> None:
    """Three steps equal those of one process, clipped by the norm of the whole model."""
    shape = Shape()
    with mesh(tp=2 if hvd.size() % 2 == 0 else 1) as made:
        whole = single(shape)
        model = divided(shape, made.tp, sequence_parallel)
        par.load_whole_state_dict(model, whole.state_dict())
        par.shard(model, made.dp, stage, unit=Block, shared=shared)
        optimizer = par.ZeroOptimizer(torch.optim.AdamW, model, **ADAMW)
        expected = adamw(whole)
        for _ in range(3):
            data = torch.randint(shape.words, (12, shape.positions))
            expected.zero_grad()
            loss = whole(data)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(whole.parameters(), 0.5)
            expected.step()
            optimizer.zero_grad()
            model(data.chunk(made.dp.size)[made.dp.rank]).backward()
            got = par.clip_grad_norm_(model, 0.5, made)
            torch.testing.assert_close(got, norm, **EXACT)
            optimizer.step()
        close(par.whole_state_dict(model), dict(whole.state_dict()))
        gradients = {name: one.grad for name, one in whole.named_parameters(remove_duplicate=False)}
        close(par.whole_gradients(model), gradients)
        par.unshard(model)


class Attention(nn.Module):
    """Causal attention, over the whole sequence or this rank's part."""

    def __init__(self, axis: par.Axis | None) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.axis = axis

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (one.unflatten(-1, (2, 4)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        if self.axis is None:
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = par.ring_attention(q, k, v, self.axis, causal=True)
        return x + y.transpose(1, 2).flatten(2)


@STAGES
def test_with_context_parallelism(stage: int) -> None:
    """Over dp and cp, whose ranks have the same parameters."""
    with mesh(cp=2 if hvd.size() % 2 == 0 else 1) as made:
        alone = nn.Sequential(Attention(None), Attention(None))
        model = nn.Sequential(Attention(made.cp), Attention(made.cp))
        model.load_state_dict(alone.state_dict())
        par.shard(model, made["dp", "cp"], stage, unit=Attention)
        optimizer = par.ZeroOptimizer(torch.optim.AdamW, model, **ADAMW)
        expected = torch.optim.AdamW(alone.parameters(), **ADAMW)
        for _ in range(3):
            x = torch.randn(2 * made.dp.size, 8, 8)
            expected.zero_grad()
            alone(x).square().mean().backward()
            expected.step()
            own = par.shard_sequence(x.chunk(made.dp.size)[made.dp.rank], made.cp)
            optimizer.zero_grad()
            model(own).square().mean().backward()
            optimizer.step()
        close(par.whole_state_dict(model), dict(alone.state_dict()))
        par.unshard(model)


def make_stages(number: int) -> list[nn.Module]:
    torch.manual_seed(4)
    return [
        nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2)))
        for _ in range(number)
    ]


SCHEDULES = pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])


@STAGES
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "own memory"])
@SCHEDULES
def test_with_pipelines(stage: int, shared: bool, schedule: str) -> None:
    """The last microbatch starts the reductions."""
    with mesh(pp=2 if hvd.size() % 2 == 0 else 1) as made:
        loss = nn.functional.mse_loss
        stages = make_stages(made.pp.size)
        pipe = par.Pipeline(stages, made.pp, loss=loss, schedule=schedule, microbatches=4)
        options = {"unit": nn.Linear, "backward_passes_per_step": 4, "shared": shared}
        par.shard(pipe.module, made.dp, stage, **options)
        optimizer = par.ZeroOptimizer(torch.optim.AdamW, pipe.module, **ADAMW)
        alone = nn.Sequential(*make_stages(made.pp.size))
        expected = torch.optim.AdamW(alone.parameters(), **ADAMW)
        for _ in range(3):
            x, target = torch.randn(2, 8 * made.dp.size, 8)
            own = slice(8 * made.dp.rank, 8 * made.dp.rank + 8)
            optimizer.zero_grad()
            pipe.step(x[own], target[own])
            expected.zero_grad()
            loss(alone(x), target).backward()
            norm = nn.utils.clip_grad_norm_(alone.parameters(), 0.1)
            torch.testing.assert_close(par.clip_grad_norm_(pipe.module, 0.1, made), norm, **EXACT)
            optimizer.step()
            expected.step()
        got = par.whole_state_dict(pipe.module).values()  # under its own names, sorted
        expected_state = sorted(alone[made.pp.rank].state_dict().items())
        for one, (_, value) in zip(got, expected_state, strict=True):
            torch.testing.assert_close(one, value, **EXACT)
        par.unshard(pipe.module)


def float_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(output.float(), target)


@STAGES
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "own memory"])
@SCHEDULES
def test_pipelines_in_mixed_precision(stage: int, shared: bool, schedule: str) -> None:
    """Stages compute and send bfloat16; the optimizer updates float32."""
    with mesh(pp=2 if hvd.size() % 2 == 0 else 1) as made:
        torch.set_default_dtype(torch.float32)
        masters = nn.Sequential(*make_stages(made.pp.size))
        alone = copy.deepcopy(masters).bfloat16()
        stages = list(copy.deepcopy(masters))
        pipe = par.Pipeline(stages, made.pp, loss=float_loss, schedule=schedule, microbatches=4)
        par.shard(
            *(pipe.module, made.dp, stage),
            unit=nn.Linear,
            dtype=torch.bfloat16,
            reduce_dtype=torch.float32,
            backward_passes_per_step=4,
            shared=shared,
        )
        optimizer = par.ZeroOptimizer(torch.optim.AdamW, pipe.module, **ADAMW)
        expected = torch.optim.AdamW(masters.parameters(), **ADAMW)
        for _ in range(3):
            x, target = torch.randn(2, 8 * made.dp.size, 8)
            own = slice(8 * made.dp.rank, 8 * made.dp.rank + 8)
            optimizer.zero_grad()
            loss = pipe.step(x[own], target[own])
            optimizer.step()
            expected.zero_grad()
            losses = []
            for part, wanted in zip(x[own].chunk(4), target[own].chunk(4), strict=True):
                losses.append(float_loss(alone(part.bfloat16()), wanted) / 4)
                gradients = torch.autograd.grad(losses[-1], list(alone.parameters()))
                losses[-1].detach_()
                for master, gradient in zip(masters.parameters(), gradients, strict=True):
                    found = 0 if master.grad is None else master.grad
                    master.grad = found + gradient.float()
            assert float(loss) == float(sum(losses[1:], losses[0]))
            if made.dp.set is not None:
                for master in masters.parameters():
                    master.grad = hvd.allreduce(master.grad, process_set=made.dp.set)
            expected.step()
            with torch.no_grad():
                for master, one in zip(masters.parameters(), alone.parameters(), strict=True):
                    one.copy_(master)
        got = par.whole_state_dict(pipe.module).values()
        expected_state = sorted(alone[made.pp.rank].state_dict().items())
        for one, (_, value) in zip(got, expected_state, strict=True):
            assert one.dtype == torch.bfloat16
            assert torch.equal(one, value)
        par.unshard(pipe.module)


def test_what_a_pipeline_ties_is_refused() -> None:
    with mesh(pp=2 if hvd.size() % 2 == 0 else 1) as made:
        if made.pp.size == 1:
            return
        torch.manual_seed(0)
        tied = [[(0, "weight"), (-1, "weight")]]
        stages = [nn.Linear(4, 4) for _ in range(2)]
        pipe = par.Pipeline(stages, made.pp, loss=nn.functional.mse_loss, microbatches=2, tied=tied)
        par.shard(pipe.module, made.dp, 1, backward_passes_per_step=2)
        optimizer = par.ZeroOptimizer(torch.optim.SGD, pipe.module, lr=0.1)
        pipe.step(torch.ones(2, 4), torch.ones(2, 4))
        with pytest.raises(ValueError, match="a pipeline ties"):
            optimizer.step()
        for one in pipe.module.parameters():
            one.grad = None
        par.unshard(pipe.module)


def test_an_optimizer_that_averages_is_refused() -> None:
    with mesh() as made:
        torch.manual_seed(0)
        model = nn.Linear(2, 2)
        par.shard(model, made.dp, 1)
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(ValueError, match=r"use par.ZeroOptimizer"):
            par.DistributedOptimizer(plain, model, made)
        other = par.Axis("tp", (hvd.rank(),), 0)
        with pytest.raises(ValueError, match="the model is sharded over the ranks"):
            par.ZeroOptimizer(torch.optim.SGD, model, other, lr=0.1)
        par.unshard(model)
