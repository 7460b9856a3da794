"""op=Adasum on tensors and in DistributedOptimizer, against one process and the formula."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from support.adasum import adasum
from torch import nn

import horoscale.torch as hvd

pytestmark = pytest.mark.conformance

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
}


def model_of() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)).double()


def batch(step: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(4, 5, dtype=torch.float64, generator=generator)


def loss_of(model: nn.Module, given: torch.Tensor) -> torch.Tensor:
    return (model(given) ** 2).sum()


def reference(make: Callable[..., torch.optim.Optimizer], steps: int, passes: int) -> nn.Module:
    """All ranks in one process: each steps its own copy; the steps are combined in numpy."""
    models = [model_of() for _ in range(hvd.size())]
    optimizers = [make(model.parameters()) for model in models]
    for step in range(steps):
        before = [parameter.detach().clone() for parameter in models[0].parameters()]
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.zero_grad()
            for i in range(passes):
                loss_of(model, batch(step * passes + i, rank)).backward()
            optimizer.step()
        with torch.no_grad():
            for i, start in enumerate(before):
                copies = [list(model.parameters())[i] for model in models]
                combined = torch.from_numpy(adasum([(one - start).numpy() for one in copies]))
                for one in copies:
                    one.copy_(start + combined)
    return models[0]


def check_close(ours: nn.Module, theirs: nn.Module) -> None:
    for mine, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_allreduce(dtype: torch.dtype, name: str) -> None:
    inputs = [
        torch.randn(999, generator=torch.Generator().manual_seed(r)) for r in range(hvd.size())
    ]
    inputs = [one.to(dtype) for one in inputs]
    expected = adasum([one.double().numpy() for one in inputs])
    result = hvd.allreduce(inputs[hvd.rank()], op=hvd.Adasum, name=name)
    assert result.dtype == dtype
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 1e-6}.get(dtype, 1e-12)
    np.testing.assert_allclose(
        result.double().numpy(), expected, rtol=tolerance, atol=tolerance * np.abs(expected).max()
    )


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_steps_are_combined(kind: str, passes: int) -> None:
    model = model_of()
    optimizer = hvd.DistributedOptimizer(
        OPTIMIZERS[kind](model.parameters()),
        named_parameters=model.named_parameters(),
        op=hvd.Adasum,
        backward_passes_per_step=passes,
    )
    for step in range(4):
        optimizer.zero_grad()
        for i in range(passes):
            loss_of(model, batch(step * passes + i, hvd.rank())).backward()
        optimizer.synchronize()
        optimizer.step()
    check_close(model, reference(OPTIMIZERS[kind], 4, passes))


def test_the_optimizer_stays_what_it_is() -> None:
    model = model_of()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(plain, 1, gamma=0.5)
    optimizer = hvd.DistributedOptimizer(plain, op=hvd.Adasum)
    assert optimizer is plain
    assert isinstance(optimizer, torch.optim.SGD)
    loss = loss_of(model, batch(0, hvd.rank()))
    loss.backward()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.05
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    for parameter in model.parameters():
        everywhere = hvd.allgather(parameter.detach().flatten()[None])
        assert all(torch.equal(everywhere[0], one) for one in everywhere)
    assert type(copy.deepcopy(optimizer)) is torch.optim.SGD
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedOptimizer(optimizer)


def test_a_parameter_without_a_gradient_on_some_ranks() -> None:
    parameters = [nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(3))]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.5), op=hvd.Adasum)
    if hvd.rank() == 0:
        parameters[1].grad = torch.full((3,), 2.0)
    optimizer.step()
    torch.testing.assert_close(parameters[0].detach(), torch.ones(4))
    torch.testing.assert_close(parameters[1].detach(), torch.zeros(3))


def test_a_closure_is_this_ranks_own() -> None:
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), op=hvd.Adasum)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, batch(0, hvd.rank()))
        loss.backward()
        return loss

    assert float(optimizer.step(closure).detach()) > 0
    check_close(model, reference(lambda p: torch.optim.SGD(p, lr=0.1), 1, 1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gradient_predivide_factor": 2.0}, "gradient_predivide_factor"),
        ({"compression": hvd.Compression.int8}, "compression"),
        ({"compression": hvd.Compression.topk(0.1)}, "compression"),
        ({"overlap_step": True}, "overlap_step"),
        ({"gradients_ready": "backward"}, "gradients_ready"),
    ],
)
def test_what_contradicts_it_is_refused(options: dict[str, object], message: str) -> None:
    optimizer = torch.optim.SGD(model_of().parameters(), lr=0.1)
    with pytest.raises(NotImplementedError, match=message):
        hvd.DistributedOptimizer(optimizer, op=hvd.Adasum, **options)


def test_skip_synchronize_is_refused() -> None:
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model_of().parameters(), lr=0.1), op=hvd.Adasum
    )
    with pytest.raises(AssertionError, match="Adasum"), optimizer.skip_synchronize():
        pass
    with pytest.raises(ValueError, match="backward_passes_per_step=0"):
        optimizer.set_backward_passes_per_step(0)
