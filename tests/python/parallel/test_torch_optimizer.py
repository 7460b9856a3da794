"""DistributedOptimizer: the ranks' result equals that of one process with all batches."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.torch_training import (
    OPTIMIZERS,
    STEPS,
    assert_same_parameters,
    loss_of,
    make_model,
    sgd,
    train_alone,
    wrap,
)
from torch import nn

import horoscale.torch as hvd
from horoscale.torch import reducer

EVERY_OPTIMIZER = pytest.mark.parametrize("kind", OPTIMIZERS)


def train(model: nn.Module, optimizer: Any, steps: int = STEPS, passes: int = 1) -> nn.Module:
    for step in range(steps):
        optimizer.zero_grad()
        for i in range(passes):
            loss_of(model, step * passes + i, hvd.rank()).backward()
        optimizer.step()
    return model


def equal_on_all_ranks(model: nn.Module) -> bool:
    everything = torch.cat([one.detach().flatten() for one in model.parameters()])
    of_root = hvd.broadcast(everything, 0)
    return all(hvd.allgather_object(torch.equal(everything, of_root)))


@pytest.fixture(params=["buckets", "no-buckets"])
def buckets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param == "no-buckets":
        monkeypatch.setattr(reducer, "make_bucket", lambda parameters: [None] * len(parameters))
    return request.param == "buckets"


@EVERY_OPTIMIZER
@pytest.mark.parametrize("passes", [1, 2, 4])
@pytest.mark.conformance
def test_same_as_one_process(kind: str, passes: int, buckets: bool) -> None:
    model = make_model()
    optimizer = wrap(model, OPTIMIZERS[kind], backward_passes_per_step=passes)
    train(model, optimizer, passes=passes)
    assert_same_parameters(model, train_alone(OPTIMIZERS[kind], passes=passes))
    assert equal_on_all_ranks(model)


def test_gradients_live_in_buckets(buckets: bool) -> None:
    model = make_model()
    optimizer = wrap(model)
    train(model, optimizer, steps=1)
    before = [one.grad.data_ptr() for one in model.parameters()]
    train(model, optimizer, steps=1)
    optimizer.zero_grad()
    assert all(one.grad is None for one in model.parameters())
    train(model, optimizer, steps=1)
    if buckets:
        assert before == [one.grad.data_ptr() for one in model.parameters()]


@pytest.mark.parametrize("passes", [1, 2])
def test_gradients_that_the_ranks_fold_in_each_others_memory(passes: int) -> None:
    # Larger than what is copied through banks, of odd sizes, and one that autograd creates in
    # another layout than the parameter's.
    model = nn.Sequential(nn.Linear(301, 1001), nn.ReLU(), nn.Linear(1001, 3)).double()
    model[2].weight.register_hook(lambda gradient: gradient.t().contiguous().t())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    everywhere = torch.randn(hvd.size(), passes, 4, 301, dtype=torch.double)
    everywhere = hvd.broadcast(everywhere, 0)
    optimizer = wrap(model, backward_passes_per_step=passes)
    for _ in range(2):
        for batch in everywhere[hvd.rank()]:
            model(batch).square().sum().backward()
        optimizer.synchronize()
        reduced = [parameter.grad.clone() for parameter in model.parameters()]
        with optimizer.skip_synchronize():
            optimizer.zero_grad()
            optimizer.step()  # without gradients nothing changes
    wanted = torch.autograd.grad(
        model(everywhere.flatten(0, 2)).square().sum() / hvd.size(), list(model.parameters())
    )
    for ours, alone in zip(reduced, wanted, strict=True):
        torch.testing.assert_close(ours, alone)
    assert equal_on_all_ranks(model)


def test_gradients_of_ranks_that_contradict_each_other_stay(need_ranks: None) -> None:
    model = nn.Linear(300, 301, bias=False)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    options = {"gradient_predivide_factor": 1.0 + hvd.rank()}
    optimizer = wrap(model, **options)
    batch = torch.full((1, 300), 1.0 + hvd.rank())
    model(batch).sum().backward()
    with pytest.raises(hvd.MismatchError):
        optimizer.step()
    assert torch.equal(model.weight.grad, batch.expand(301, 300))


@pytest.mark.parametrize("how", ["optimizer", "zeros", "model", "none"])
def test_ways_to_forget_gradients(how: str, buckets: bool) -> None:
    model = make_model()
    optimizer = wrap(model)
    for step in range(STEPS):
        if how == "model":
            model.zero_grad()
        elif how == "none":
            for parameter in model.parameters():
                parameter.grad = None
        else:
            optimizer.zero_grad(set_to_none=how == "optimizer")
        loss_of(model, step, hvd.rank()).backward()
        optimizer.step()
    assert_same_parameters(model, train_alone(sgd))


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_predivide_factor": 2.0},
        {"num_groups": 2},
        {"groups": 1},
        {"groups": 100},
        {"sparse_as_dense": True},
    ],
    ids=str,
)
def test_options(options: dict[str, Any]) -> None:
    model = make_model()
    train(model, wrap(model, **options))
    assert_same_parameters(model, train_alone(sgd))


def test_groups_of_parameters(buckets: bool) -> None:
    model = make_model()
    weight, bias, *_ = model.parameters()
    train(model, wrap(model, groups=[[weight, bias]]))
    assert_same_parameters(model, train_alone(sgd))


@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_compression(compression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compressor = getattr(hvd.Compression, compression)
    monkeypatch.setattr(compressor, "compress", None)  # the library does it
    model = make_model()
    train(model, wrap(model, compression=compressor))
    for one, expected in zip(model.parameters(), train_alone(sgd).parameters(), strict=True):
        torch.testing.assert_close(one, expected, rtol=0.02, atol=0.02)
    assert equal_on_all_ranks(model)


def test_a_compressor_of_the_users_own_is_called() -> None:
    compressed: list[torch.dtype] = []

    class Wide(hvd.Compression.fp16):  # type: ignore[misc]
        @classmethod
        def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
            compressed.append(tensor.dtype)
            return tensor.double(), tensor.dtype

    model = make_model()
    train(model, wrap(model, compression=Wide))
    assert_same_parameters(model, train_alone(sgd))
    assert len(compressed) == STEPS * len(list(model.parameters()))


def test_sum(buckets: bool) -> None:
    model = make_model()
    optimizer = wrap(model, lambda p: torch.optim.SGD(p, lr=0.1 / hvd.size()), op=hvd.Sum)
    train(model, optimizer)
    assert_same_parameters(model, train_alone(lambda p: torch.optim.SGD(p, lr=0.1)))


def test_synchronize_and_clip() -> None:
    def clipped_step(model: nn.Module, optimizer: Any, loss: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        if distributed := hasattr(optimizer, "synchronize"):
            optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if distributed:
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()

    model, alone = make_model(), make_model()
    optimizer, plain = wrap(model), sgd(list(alone.parameters()))
    for step in range(STEPS):
        clipped_step(model, optimizer, loss_of(model, step, hvd.rank()))
        losses = [loss_of(alone, step, rank) for rank in range(hvd.size())]
        clipped_step(alone, plain, sum(losses) / hvd.size())
    assert_same_parameters(model, alone)


def test_step_after_synchronize_warns() -> None:
    model = make_model()
    optimizer = wrap(model)
    loss_of(model, 0, hvd.rank()).backward()
    optimizer.synchronize()
    horovods = (
        "optimizer.step() called without optimizer.skip_synchronize() context after "
        "optimizer.synchronize(). This can cause training slowdown. You may want to consider using "
        "optimizer.skip_synchronize() context if you use optimizer.synchronize() in your code."
    )
    with pytest.warns(UserWarning, match=re.escape(horovods)) as warned:
        optimizer.step()
    assert warned[0].filename == __file__
    assert_same_parameters(model, train_alone(sgd, steps=1))


def test_closure() -> None:
    model = make_model()
    optimizer = wrap(model)
    for step in range(STEPS):

        def closure(step: int = step) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, step, hvd.rank())
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        assert loss.item() > 0
    assert_same_parameters(model, train_alone(sgd))


@pytest.mark.conformance
def test_parameters_without_gradient_on_some_ranks(buckets: bool) -> None:
    torch.manual_seed(0)
    heads = nn.ModuleList([nn.Linear(3, 1, bias=False) for _ in range(hvd.size() + 1)])
    heads.append(nn.Linear(3, 1))  # never used
    before = [one.weight.detach().clone() for one in heads]
    optimizer = wrap(heads, lambda parameters: torch.optim.SGD(parameters, lr=1.0))
    for _ in range(2):
        optimizer.zero_grad()
        (heads[hvd.rank()](torch.ones(1, 3)) * (hvd.rank() + 1.0)).sum().backward()
        optimizer.step()
    for i, head in enumerate(heads):
        step = 2.0 * (i + 1) / hvd.size() if i < hvd.size() else 0.0
        torch.testing.assert_close(head.weight.detach(), before[i] - step)


def test_zero_grad_with_work_pending() -> None:
    model = make_model()
    optimizer = wrap(model, backward_passes_per_step=2)
    loss_of(model, 0, hvd.rank()).backward()
    with pytest.raises(AssertionError, match="zero_grad"):
        optimizer.zero_grad()
    loss_of(model, 1, hvd.rank()).backward()
    with pytest.raises(AssertionError, match="zero_grad"):
        optimizer.zero_grad()
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        optimizer.set_backward_passes_per_step(1)
    with pytest.raises(AssertionError, match="backward_passes_per_step=2"):
        loss_of(model, 2, hvd.rank()).backward()
    with pytest.warns(UserWarning, match="change is lost"):  # added by that pass
        optimizer.step()
    optimizer.zero_grad()


def test_fewer_passes_than_announced() -> None:
    model = make_model()
    train(model, wrap(model, backward_passes_per_step=3))
    assert_same_parameters(model, train_alone(sgd))


def test_changed_number_of_passes() -> None:
    model = make_model()
    optimizer = wrap(model)
    optimizer.set_backward_passes_per_step(2)
    train(model, optimizer, passes=2)
    assert_same_parameters(model, train_alone(sgd, passes=2))


def test_subset_of_the_ranks(need_ranks: None) -> None:
    others = hvd.add_process_set(range(1, hvd.size()))
    model = make_model()
    optimizer = wrap(model, process_set=others)
    train(model, optimizer, steps=1)
    expected = make_model()
    plain = sgd(list(expected.parameters()))
    members = others.ranks if others.included() else [hvd.rank()]
    (sum(loss_of(expected, 0, rank) for rank in members) / len(members)).backward()
    plain.step()
    assert_same_parameters(model, expected)
    assert hvd.remove_process_set(others)


@pytest.mark.parametrize("buckets", ["buckets"], indirect=True)
def test_channels_last(buckets: bool) -> None:
    torch.manual_seed(3)
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    optimizer = wrap(model)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.full((1, 3, 5, 5), 1.0 + hvd.rank())).square().mean().backward()
        optimizer.step()
        assert model.weight.grad.stride() == model.weight.stride()
    assert equal_on_all_ranks(model)


def test_ranks_that_disagree_about_the_memory_format(buckets: bool, need_ranks: None) -> None:
    """All extents are equal, so the shapes alone would not show it."""
    model = nn.Conv2d(3, 3, 3)
    if hvd.rank() == 0:
        model = model.to(memory_format=torch.channels_last)
    optimizer = wrap(model)
    model(torch.ones(1, 3, 5, 5)).square().mean().backward()
    with pytest.raises(hvd.MismatchError, match="channels_last"):
        optimizer.step()


def test_shapes_that_differ_are_no_memory_formats(buckets: bool, need_ranks: None) -> None:
    parameter = nn.Parameter(torch.zeros(5, 1 + hvd.rank()))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], 1.0))
    parameter.sum().backward()
    with pytest.raises(hvd.MismatchError, match=r"\[5, 1\]") as wrong:
        optimizer.step()
    assert "channels_last" not in str(wrong.value)


@pytest.mark.parametrize("ready", ["step", "backward"])
@pytest.mark.parametrize("alike", [True, False], ids=["alike", "another-order-on-rank-0"])
def test_orders_of_memory_that_no_shape_can_tell(buckets: bool, alike: bool, ready: str) -> None:
    """The layout's number is too large; elements are sent by index."""
    values = torch.arange(720.0).view(2, 3, 4, 5, 6).permute(4, 3, 2, 1, 0)
    parameter = nn.Parameter(values.clone())
    if hvd.rank() == 0 and not alike:
        parameter = nn.Parameter(values.contiguous())
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([parameter], 1.0), gradients_ready=ready, op=hvd.Sum
    )
    for step in range(1, 3):
        optimizer.zero_grad(set_to_none=False)
        (parameter * values * step).sum().backward()
        optimizer.step()
        assert torch.equal(parameter.grad, values * step * hvd.size())


@pytest.mark.parametrize(
    "gapped",
    [
        lambda: torch.arange(24.0).view(3, 1, 8)[..., ::2],
        lambda: torch.arange(24.0).view(8, 1, 3)[::2].permute(2, 1, 0),
    ],
    ids=["steps", "transposed"],
)
def test_gradients_with_gaps_on_one_rank(buckets: bool, gapped: Callable[[], Any]) -> None:
    parameter = nn.Parameter(torch.zeros(3, 1, 4))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], 1.0))
    values = gapped()
    (parameter * values).sum().backward()
    optimizer.synchronize()
    optimizer.zero_grad()
    parameter.grad = values if hvd.rank() == 0 else values.contiguous()
    optimizer.step()
    assert torch.equal(parameter.detach(), -values)


@pytest.mark.filterwarnings("ignore:Using backward")
def test_gradients_of_gradients(buckets: bool) -> None:
    model = make_model()
    optimizer = wrap(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward(create_graph=step % 2 == 0)
        optimizer.step()
    assert_same_parameters(model, train_alone(sgd))
