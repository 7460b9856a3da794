"""DistributedOptimizer with other parts of training scripts, and over its life."""

from __future__ import annotations

import copy
import functools
import gc
import io
import pickle
import time
import weakref
from typing import Any

import pytest
import torch
from support.torch_training import (
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


def step_with(model: nn.Module, optimizer: Any, step: int) -> None:
    optimizer.zero_grad()
    loss_of(model, step, hvd.rank()).backward()
    optimizer.step()


def all_losses(model: nn.Module, step: int) -> torch.Tensor:
    return sum(loss_of(model, step, rank) for rank in range(hvd.size())) / hvd.size()


def test_is_the_users_optimizer() -> None:
    model = make_model()
    plain = sgd(list(model.parameters()))
    text = repr(plain)
    optimizer = hvd.DistributedOptimizer(plain)
    assert optimizer is plain
    assert isinstance(optimizer, torch.optim.SGD)
    assert repr(optimizer) == text
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedOptimizer(optimizer)


@pytest.mark.parametrize("wrapped_first", [True, False])
def test_scheduler(wrapped_first: bool) -> None:
    def schedule(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    model, alone = make_model(), make_model()
    plain = sgd(list(model.parameters()))
    scheduler = None if wrapped_first else schedule(plain)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
    scheduler = scheduler or schedule(optimizer)
    expected = sgd(list(alone.parameters()))
    expected_scheduler = schedule(expected)
    for step in range(STEPS):
        step_with(model, optimizer, step)
        scheduler.step()
        expected.zero_grad()
        all_losses(alone, step).backward()
        expected.step()
        expected_scheduler.step()
    assert_same_parameters(model, alone)


@pytest.mark.parametrize("way", ["plain", "unscale", "synchronize"])
def test_grad_scaler(way: str) -> None:
    """A rank overflows in step 1: no rank takes that step, and all lower their scale."""

    def scaler() -> torch.amp.GradScaler:
        return torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=100)

    model, alone = make_model(), make_model()
    optimizer, expected = wrap(model), sgd(list(alone.parameters()))
    mine, plain = scaler(), scaler()
    for step in range(STEPS):
        overflow = float("inf") if step == 1 else 1.0
        optimizer.zero_grad()
        loss = loss_of(model, step, hvd.rank())
        mine.scale(loss * (overflow if hvd.rank() == 0 else 1.0)).backward()
        if way == "synchronize":
            optimizer.synchronize()
        if way != "plain":
            mine.unscale_(optimizer)
        if way == "synchronize":
            with optimizer.skip_synchronize():
                mine.step(optimizer)
        else:
            mine.step(optimizer)
        mine.update()
        expected.zero_grad()
        plain.scale(all_losses(alone, step) * overflow).backward()
        plain.step(expected)
        plain.update()
    assert mine.get_scale() == plain.get_scale() == 4.0
    assert_same_parameters(model, alone)


def test_grad_scaler_where_a_rank_has_no_gradient(need_ranks: None) -> None:
    model, alone = make_model(), make_model()
    optimizer, expected = wrap(model), sgd(list(alone.parameters()))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        if step != 1 or hvd.rank() != 0:
            scaler.scale(loss_of(model, step, hvd.rank())).backward()
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
        expected.zero_grad()
        ranks = range(1 if step == 1 else 0, hvd.size())
        (sum(loss_of(alone, step, rank) for rank in ranks) / hvd.size()).backward()
        expected.step()
    assert_same_parameters(model, alone)


def test_one_rank_looks_at_the_parameter_groups() -> None:
    """It does not wait for later actions of the others."""
    model = make_model()
    optimizer = wrap(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, step, hvd.rank())
        loss.backward()
        if hvd.rank() == 0:
            assert optimizer.param_groups[0]["lr"] == 0.1
        hvd.allreduce(loss.detach())
        optimizer.step()
    assert_same_parameters(model, train_alone(sgd))


@pytest.mark.parametrize("way", ["synchronize", "closure"])
def test_what_one_rank_has_looked_at_is_not_reduced_again(way: str) -> None:
    model = make_model()
    optimizer = wrap(model)

    def backward(step: int) -> None:
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        if hvd.rank() == 0:
            assert optimizer.param_groups[0]["lr"] == 0.1

    for step in range(STEPS):
        if way == "closure":
            optimizer.step(functools.partial(backward, step))
            continue
        backward(step)
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
    assert_same_parameters(model, train_alone(sgd))


@pytest.mark.conformance
def test_parameter_group_added_later() -> None:
    model, alone = make_model(), make_model()
    optimizer = hvd.DistributedOptimizer(sgd(list(model[0].parameters())), model.named_parameters())
    expected = sgd(list(alone[0].parameters()))
    for step in range(STEPS):
        if step == 1:
            optimizer.add_param_group({"params": list(model[2].parameters())})
            expected.add_param_group({"params": list(alone[2].parameters())})
        model.zero_grad()
        step_with(model, optimizer, step)
        alone.zero_grad()
        all_losses(alone, step).backward()
        expected.step()
    assert_same_parameters(model, alone)


def test_parameters_frozen_and_unfrozen() -> None:
    model, alone = make_model(), make_model()
    model[0].weight.requires_grad_(False)
    alone[0].weight.requires_grad_(False)
    optimizer, expected = wrap(model, groups=2), sgd(list(alone.parameters()))
    for step in range(2 * STEPS):
        for one in (model, alone):
            one[0].weight.requires_grad_(step >= 2)
            one[2].weight.requires_grad_(step not in (3, 4))
        step_with(model, optimizer, step)
        expected.zero_grad()
        all_losses(alone, step).backward()
        expected.step()
    assert_same_parameters(model, alone)


@pytest.mark.conformance
def test_several_optimizers_over_one_model() -> None:
    model = make_model()
    optimizers = [
        hvd.DistributedOptimizer(sgd(list(part.parameters())), model.named_parameters())
        for part in (model[0], model[2])
    ]
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        for optimizer in optimizers:
            optimizer.step()
    assert_same_parameters(model, train_alone(sgd))


def test_models_with_the_same_names() -> None:
    models = [make_model(), make_model()]
    optimizers = [wrap(model) for model in models]
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        sum(loss_of(model, step, hvd.rank()) for model in models).backward()
        for optimizer in optimizers:
            optimizer.step()
    for model in models:
        assert_same_parameters(model, train_alone(sgd))


def test_optimizers_that_share_parameters() -> None:
    model = make_model()
    optimizers = [wrap(model), wrap(model)]
    for step in range(STEPS):
        step_with(model, optimizers[0], step)
    assert_same_parameters(model, train_alone(sgd))
    with pytest.raises(ValueError, match="another DistributedOptimizer"):
        wrap(model, op=hvd.Sum)
    del optimizers
    gc.collect()
    wrap(model, op=hvd.Sum)


def test_hooks_end_with_the_optimizer() -> None:
    model = make_model()
    optimizer = wrap(model)
    step_with(model, optimizer, 0)
    del optimizer
    gc.collect()
    model.zero_grad()
    loss_of(model, 1, hvd.rank()).backward()
    loss_of(model, 2, hvd.rank()).backward()  # not counted


def test_state_dict() -> None:
    model = make_model()
    optimizer = wrap(model)
    for step in range(2):
        step_with(model, optimizer, step)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    again = make_model()
    plain = sgd(list(again.parameters()))
    again.load_state_dict(saved[0])
    plain.load_state_dict(saved[1])
    other = hvd.DistributedOptimizer(plain, again.named_parameters())
    calls = []
    other.register_step_pre_hook(lambda *_: calls.append(1))
    other.load_state_dict(other.state_dict())
    for step in range(2, STEPS):
        step_with(again, other, step)
    assert len(calls) == STEPS - 2
    assert_same_parameters(again, train_alone(sgd))


def test_copies_are_plain() -> None:
    model = make_model()
    optimizer = wrap(model)
    step_with(model, optimizer, 0)
    for duplicate in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert type(duplicate) is torch.optim.SGD
        assert duplicate.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    assert_same_parameters(torch.load(file, weights_only=False), model)
    step_with(model, optimizer, 1)
    assert_same_parameters(model, train_alone(sgd, steps=2))


def test_copied_model_trains_alone() -> None:
    model = make_model()
    optimizer = wrap(model)
    duplicate = copy.deepcopy(model)
    if hvd.rank() == 0:
        loss_of(duplicate, 0, 0).backward()
        loss_of(duplicate, 0, 0).backward()
    step_with(model, optimizer, 0)
    assert_same_parameters(model, train_alone(sgd, steps=1))


@pytest.mark.timeout(300)
def test_compiled_model() -> None:
    model = make_model()
    optimizer = wrap(model)
    compiled = torch.compile(model, backend="aot_eager")
    for step in range(STEPS):
        step_with(compiled, optimizer, step)
    assert_same_parameters(model, train_alone(sgd))


@pytest.mark.parametrize("sparse_as_dense", [False, True])
def test_sparse_gradients(sparse_as_dense: bool) -> None:
    def make() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 2)).double()

    def loss(model: nn.Module, step: int, rank: int) -> torch.Tensor:
        if step == 1 and rank == 0:
            return model[1](torch.ones(1, 4, dtype=torch.float64)).sum()  # no row on this rank
        return model(torch.tensor([rank % 10, step, step])).square().sum()

    model, alone = make(), make()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model.named_parameters(),
        sparse_as_dense=sparse_as_dense,
    )
    expected = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        loss(model, step, hvd.rank()).backward()
        optimizer.step()
        assert model[0].weight.grad.is_sparse != sparse_as_dense
        expected.zero_grad()
        (sum(loss(alone, step, rank) for rank in range(hvd.size())) / hvd.size()).backward()
        expected.step()
    assert_same_parameters(model, alone)


@pytest.mark.conformance
def test_sparse_gradient_that_a_rank_has_not_had_yet() -> None:
    """No rank uses the table in step 0, some do in step 1: its zeros are sparse there, too."""

    def make() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 2)).double()

    def loss(model: nn.Module, step: int, rank: int) -> torch.Tensor:
        if step == 0 or (step == 1 and rank == 0):
            return model[1](torch.ones(1, 4, dtype=torch.float64)).sum()
        return model(torch.tensor([rank % 10, step])).square().sum()

    model, alone = make(), make()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    expected = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        loss(model, step, hvd.rank()).backward()
        optimizer.step()
        expected.zero_grad()
        (sum(loss(alone, step, rank) for rank in range(hvd.size())) / hvd.size()).backward()
        expected.step()
    assert_same_parameters(model, alone)


@pytest.mark.parametrize("num_groups", [0, 1])
def test_a_gradient_that_is_sparse_on_one_rank_only(need_ranks: None, num_groups: int) -> None:
    """It is a mismatch, which all ranks report; the job continues."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Embedding(10, 4, sparse=hvd.rank() == 0), nn.Linear(4, 2))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model.named_parameters(prefix=f"sparse_on_one.{num_groups}"),
        num_groups=num_groups,
    )
    model(torch.tensor([1, 2])).square().sum().backward()
    with pytest.raises(hvd.MismatchError, match=r"disagree about .* rank 0: "):
        optimizer.step()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum, name="after").item() == hvd.size()


def test_memory_ends_with_model_and_optimizer() -> None:
    model = make_model()
    optimizer = wrap(model)
    step_with(model, optimizer, 0)
    followed = [
        weakref.ref(one)
        for one in (
            optimizer,
            model,
            *model.parameters(),
            model[0].weight.grad.untyped_storage(),
            *optimizer._reducer.groups,
        )
    ]
    del model, optimizer
    gc.collect()
    assert [one() for one in followed] == [None] * len(followed)


def test_an_error_in_a_backward_pass_ends_one_step() -> None:
    """All ranks get it; synchronize() clears pending reductions."""
    model = make_model()
    optimizer = wrap(model)

    def fail(_: torch.Tensor) -> None:
        raise KeyError("planted")

    hook = model[0].weight.register_hook(fail)
    with pytest.raises(KeyError, match="planted"):
        loss_of(model, 0, hvd.rank()).backward()
    hook.remove()
    optimizer.synchronize()
    step_with(model, optimizer, 0)
    assert_same_parameters(model, train_alone(sgd, steps=1))


def test_a_rank_that_leaves_after_a_step_waits_until_others_have_done_it() -> None:
    model = nn.Linear(3, 2)  # no rank needs to ask the others about it
    optimizer = wrap(model)
    model(torch.ones(1, 3)).sum().backward()
    if hvd.rank() > 0:
        time.sleep(1)  # long enough for the others to see the exit of a rank that doesn't wait
    optimizer.step()
    hvd.shutdown()
    hvd.init(process_sets="dynamic")


def test_first_steps_in_any_order() -> None:
    """No rank waits for the other's actions after another optimizer's step."""
    models = make_model(), make_model()
    optimizers = [wrap(model) for model in models]
    for model in models:
        loss_of(model, 0, hvd.rank()).backward()
    for optimizer in optimizers if hvd.rank() % 2 else reversed(optimizers):
        optimizer.step()
    hvd.barrier()


def test_an_optimizer_outlives_its_job() -> None:
    model = make_model()
    optimizer = wrap(model)
    step_with(model, optimizer, 0)
    hvd.shutdown()
    with pytest.raises(ValueError, match="init"):
        loss_of(model, 1, hvd.rank()).backward()
    hvd.init(process_sets="dynamic")
    step_with(model, optimizer, 1)
    assert_same_parameters(model, train_alone(sgd, steps=2))


def test_priorities(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    names = [name for name, _ in model.named_parameters()]
    hvd.set_priority(model[0].bias, 7)
    hvd.set_priority("2.bias", 9)
    optimizer = wrap(model)
    found = {
        gradient.name: gradient.priority
        for group in optimizer._reducer.groups
        for gradient in group.gradients
    }
    assert found == dict(zip(names, (0, 7, -2, 9), strict=True))
    hvd.set_priority("2.bias", -3)
    step_with(model, optimizer, 0)
    assert_same_parameters(model, train_alone(sgd, steps=1))


class Backwards(torch.nn.Module):
    """Uses its layers from the last to the first, and one as a part of another."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4, bias=False) for _ in range(4))
        self.attention = torch.nn.MultiheadAttention(4, 1, bias=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        for layer in reversed(self.layers):
            rows = layer(rows)
        return self.attention(rows, rows, rows)[0]


def test_what_the_forward_pass_uses_first_is_the_most_urgent() -> None:
    model = Backwards()
    optimizer = wrap(model)
    for _ in range(2):
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    gradients = [g for group in optimizer._reducer.groups for g in group.gradients]
    assert [g.name for g in sorted(gradients, key=lambda g: -g.priority)] == [
        *(f"layers.{i}.weight" for i in (3, 2, 1, 0)),
        "attention.in_proj_weight",
        "attention.out_proj.weight",
    ]


@pytest.mark.conformance
def test_a_mismatch_ends_one_step(need_ranks: None) -> None:
    """Every rank gets the error, no rank takes the step, and the next step works."""
    model = make_model()
    odd = torch.nn.Parameter(torch.ones(2 if hvd.rank() == 0 else 3))
    before = copy.deepcopy(model)
    optimizer = hvd.DistributedOptimizer(sgd([*model.parameters(), odd]))
    optimizer.zero_grad()
    (loss_of(model, 0, hvd.rank()) + odd.sum()).backward()
    with pytest.raises(hvd.MismatchError):
        optimizer.step()
    assert_same_parameters(model, before)
    odd.requires_grad_(False)
    optimizer.zero_grad()
    loss_of(model, 0, hvd.rank()).backward()
    optimizer.step()
    assert_same_parameters(model, train_alone(sgd, steps=1))


def test_training_goes_on_with_a_joined_rank(need_ranks: None) -> None:
    """The last rank has one batch less: it contributes zeros, and averages are over all ranks."""
    model, alone = make_model(), make_model()
    optimizer, expected = wrap(model), sgd(list(alone.parameters()))
    last = hvd.size() - 1
    for step in range(2):
        if step == 0 or hvd.rank() != last:
            step_with(model, optimizer, step)
        ranks = range(hvd.size() if step == 0 else last)
        expected.zero_grad()
        (sum(loss_of(alone, step, rank) for rank in ranks) / hvd.size()).backward()
        expected.step()
    hvd.join()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    assert_same_parameters(model, alone)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"named_parameters": [("a", 1, 2)]}, "pairs"),
        ({"named_parameters": []}, "lacks"),
        ({"backward_passes_per_step": 0}, "backward_passes_per_step=0"),
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "Average"),
        ({"groups": -1}, "groups"),
        ({"groups": [[1]]}, "groups"),
        ({"groups": "each"}, "groups"),
        ({"compression": "fp16"}, "compression='fp16'"),
    ],
    ids=str,
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    model = make_model()
    with pytest.raises(ValueError, match=message):
        hvd.DistributedOptimizer(sgd(list(model.parameters())), **options)


def test_wrong_names_and_groups() -> None:
    model = make_model()
    parameters = list(model.parameters())
    with pytest.raises(ValueError, match=r"\['a'\]"):
        hvd.DistributedOptimizer(sgd(parameters), [("a", one) for one in parameters])
    with pytest.raises(ValueError, match="more than once"):
        hvd.DistributedOptimizer(sgd(parameters), groups=[[parameters[0]], [parameters[0]]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"op": hvd.Adasum, "gradient_predivide_factor": 2.0}, "gradient_predivide_factor"),
        ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "gradient_predivide_factor"),
    ],
    ids=["predivided-adasum", "predivided-sum"],
)
def test_what_is_missing(options: dict[str, Any], message: str) -> None:
    """Programs for Horovod catch NotImplementedError, those for horoscale ValueError."""
    with pytest.raises(NotImplementedError, match=message) as error:
        wrap(make_model(), **options)
    assert isinstance(error.value, ValueError)
