"""The content of `.grad` over time: gradients_ready="step" and "backward"."""

from __future__ import annotations

import warnings
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
from torch.utils.checkpoint import checkpoint

import horoscale.torch as hvd
from horoscale.torch import rounds


def wait_until_reduced(optimizer: Any) -> None:
    """Wait for the reductions, but leave their results in place."""
    for group in optimizer._reducer.groups:
        for handle, _ in group._in_flight:
            handle.wait()


SIZES = pytest.mark.parametrize("size", [3, 20_000, 200_000], ids=["small", "banks", "direct"])


def one_parameter(size: int, **options: Any) -> tuple[nn.Parameter, Any]:
    parameter = nn.Parameter(torch.zeros(size))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], 1.0), **options)
    return parameter, optimizer


def share() -> float:
    return hvd.rank() + 1.0


def mean() -> float:
    """The mean of the ranks' shares."""
    return (hvd.size() + 1) / 2


def assert_all(tensor: torch.Tensor, value: float) -> None:
    assert torch.equal(tensor, torch.full_like(tensor, value))


@SIZES
@pytest.mark.parametrize("zeros", [False, True], ids=["anew", "in-place"])
@pytest.mark.parametrize("passes", [1, 2])
def test_a_gradient_is_this_ranks_own_until_the_step(size: int, zeros: bool, passes: int) -> None:
    parameter, optimizer = one_parameter(size, backward_passes_per_step=passes)
    for step in range(3):
        optimizer.zero_grad(set_to_none=not zeros)
        for i in range(passes):
            (parameter * share()).sum().backward()
            assert_all(parameter.grad, share() * (i + 1))
        wait_until_reduced(optimizer)
        hvd.barrier()
        assert_all(parameter.grad, share() * passes)
        optimizer.step()
        assert_all(parameter.grad, mean() * passes)
        assert_all(parameter.detach(), -mean() * passes * (step + 1))


@SIZES
def test_gradients_that_are_not_zeroed_add_up(size: int) -> None:
    parameter, optimizer = one_parameter(size)
    (2 * parameter * share()).sum().backward(retain_graph=True)
    optimizer.step()
    (parameter * share()).sum().backward()
    assert_all(parameter.grad, 2 * mean() + share())
    optimizer.step()
    assert_all(parameter.grad, 3 * mean())


@SIZES
def test_a_change_before_the_step_is_told_once(size: int) -> None:
    parameter, optimizer = one_parameter(size)

    def step() -> None:
        optimizer.zero_grad()
        (parameter * share()).sum().backward()
        wait_until_reduced(optimizer)
        nn.utils.clip_grad_norm_([parameter], 0.01)
        optimizer.step()

    with pytest.warns(UserWarning, match="was changed between") as warned:
        step()
    [text] = [str(one.message) for one in warned]
    for part in ("unnamed.0", "is lost", "synchronize()", "skip_synchronize()", "='backward'"):
        assert part in text
    assert "overlap_step" not in text
    assert warned[0].filename == __file__
    step()  # does not warn: warnings are errors here
    assert_all(parameter.detach(), -2 * mean())


@pytest.mark.parametrize("how", ["replaced", "none"])
def test_gradients_put_in_place_of_those_being_reduced_are_lost(how: str) -> None:
    parameter, optimizer = one_parameter(10)
    (parameter * share()).sum().backward()
    parameter.grad = None if how == "none" else torch.ones(10)
    with pytest.warns(UserWarning, match="is lost"):
        optimizer.step()
    assert_all(parameter.detach(), -mean())


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_change_where_there_is_no_shared_memory(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horoscale.torch.reducer.make_bucket", lambda all: [None] * len(all))
    parameter, optimizer = one_parameter(size)
    (parameter * share()).sum().backward()
    hvd.barrier()
    assert_all(parameter.grad, share())
    parameter.grad.mul_(2.0 + hvd.rank())
    with pytest.warns(UserWarning, match="is lost"):
        optimizer.step()
    assert_all(parameter.grad, mean())


def test_a_change_where_one_of_a_group_is_sparse() -> None:
    """A group that can't be reduced in place as a whole does not write to `.grad` either."""
    embedding = torch.nn.Embedding(4, 3, sparse=True)
    linear = torch.nn.Linear(300, 300, bias=False)
    parameters = [*embedding.named_parameters("embedding"), *linear.named_parameters("linear")]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([parameter for _, parameter in parameters], lr=1.0),
        named_parameters=parameters,
        groups=1,
    )
    loss = embedding(torch.tensor([1])).sum() + (linear.weight * share()).sum()
    loss.backward()
    hvd.barrier()
    assert_all(linear.weight.grad, share())
    linear.weight.grad.mul_(2.0 + hvd.rank())
    with pytest.warns(UserWarning, match="is lost"):
        optimizer.step()
    assert_all(linear.weight.grad, mean())


@pytest.mark.conformance
@SIZES
def test_backward_returns_averages(size: int) -> None:
    parameter, optimizer = one_parameter(size, gradients_ready="backward")
    for step in range(3):
        optimizer.zero_grad()
        (parameter * share()).sum().backward()
        assert_all(parameter.grad, mean())
        parameter.grad.mul_(2.0)
        optimizer.step()
        assert_all(parameter.detach(), -2 * mean() * (step + 1))


@pytest.mark.conformance
def test_a_further_backward_is_reduced_again() -> None:
    parameter, optimizer = one_parameter(10, gradients_ready="backward")
    for step in range(2):
        optimizer.zero_grad()
        (parameter * share()).sum().backward()
        with warnings.catch_warnings():
            warnings.simplefilter("error" if step else "ignore")  # it warns once
            (parameter * 2 * share()).sum().backward()
        torch.testing.assert_close(parameter.grad, torch.full((10,), 3 * mean()))
        optimizer.step()
        (parameter * 2 * share()).sum().backward()  # as in a GAN: not needed
    optimizer.zero_grad()
    (parameter * share()).sum().backward()
    with optimizer.no_sync():
        (parameter * 2 * share()).sum().backward()
    assert_all(parameter.grad, mean() + 2 * share())
    optimizer.step()
    torch.testing.assert_close(parameter.grad, torch.full((10,), 3 * mean()))


@pytest.mark.filterwarnings("ignore:Using backward")  # with create_graph; warns once per process
def test_a_further_backward_with_a_sum_is_refused() -> None:
    parameter, _optimizer = one_parameter(10, gradients_ready="backward", op=hvd.Sum)
    for _ in range(2):
        (parameter * share()).sum().backward()
        parameter.grad = None  # like model.zero_grad(): resets the state
    (parameter * share()).sum().backward()
    assert_all(parameter.grad, mean() * hvd.size())
    with pytest.raises(AssertionError, match=r"op=Average only.*zero_grad.*no_sync"):
        (parameter * share()).sum().backward()
    parameter.grad = None
    (parameter * share()).sum().backward(create_graph=True)


@pytest.mark.parametrize("ready", ["step", "backward"])
@pytest.mark.parametrize("how", ["cloned", "in-part"])
def test_a_sum_that_is_not_forgotten_is_not_reduced_again(how: str, ready: str) -> None:
    """Even if it is a copy, and even if the further pass does not modify it."""
    first, second = (nn.Parameter(torch.zeros(4)) for _ in range(2))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([first, second], 1.0), gradients_ready=ready, op=hvd.Sum
    )
    ((first + second) * share()).sum().backward()
    optimizer.synchronize()
    if how == "cloned":
        first.grad, second.grad = first.grad.clone(), second.grad.clone()
    else:
        first.grad = None
    with pytest.raises(AssertionError, match=r"unnamed\..* is already reduced"):
        (first * share()).sum().backward()


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average], ids=["sum", "average"])
@pytest.mark.parametrize("how", ["model", "parameter", "none"])
def test_gradients_that_are_zeroed_begin_anew(how: str, op: int) -> None:
    """Without an error and without a warning, which would be an error here."""
    parameter, _optimizer = one_parameter(10, gradients_ready="backward", op=op)
    for _ in range(3):
        (parameter * share()).sum().backward()
        assert_all(parameter.grad, mean() * (hvd.size() if op == hvd.Sum else 1))
        if how == "model":
            nn.ParameterList([parameter]).zero_grad(set_to_none=False)
        elif how == "parameter":
            parameter.grad.zero_()
        else:
            parameter.grad = None


def test_sparse_gradients_that_are_zeroed_begin_anew() -> None:
    model = nn.Embedding(3, 2, sparse=True)
    optimizer = wrap(model, gradients_ready="backward", op=hvd.Sum)
    for _ in range(2):
        (model(torch.arange(3)) * share()).sum().backward()
        assert_all(model.weight.grad.to_dense(), mean() * hvd.size())
        model.zero_grad(set_to_none=False)
    (model(torch.arange(3)) * share()).sum().backward()
    with pytest.raises(AssertionError, match="op=Average only"):
        (model(torch.arange(3)) * share()).sum().backward()
    optimizer.zero_grad()


@pytest.mark.filterwarnings("ignore:Using backward")  # with create_graph; warns once per process
def test_gradients_with_a_graph_begin_anew() -> None:
    parameter, _optimizer = one_parameter(4, gradients_ready="backward", op=hvd.Sum)
    for _ in range(2):
        parameter.grad = None
        ((parameter + share()) ** 2).sum().backward(create_graph=True)
        assert_all(parameter.grad, 2 * mean() * hvd.size())


def test_gradients_that_nobody_adds_up_are_not_looked_for() -> None:
    """torch.autograd.grad() computes gradients like backward(), but accumulates nothing."""
    parameter, optimizer = one_parameter(4, gradients_ready="backward", op=hvd.Sum)
    (parameter * share()).sum().backward()
    torch.autograd.grad((parameter * share()).sum(), [parameter])
    assert_all(parameter.grad, mean() * hvd.size())
    optimizer.step()
    assert_all(parameter.detach(), -mean() * hvd.size())


def test_the_default_has_one_hook_for_each_gradient() -> None:
    """The earlier hook, which costs time, is only for options that need previous gradients."""
    for options, earlier in [({}, 0), ({"gradients_ready": "backward"}, 1), ({"op": hvd.Sum}, 1)]:
        parameter, _optimizer = one_parameter(4, **options)
        assert len(parameter._backward_hooks or ()) == earlier
        assert len(parameter._post_accumulate_grad_hooks) == 1


def test_a_further_backward_is_told_once() -> None:
    parameter, optimizer = one_parameter(4, gradients_ready="backward")

    def step() -> None:
        for _ in range(3):
            (parameter * share()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    with pytest.warns(UserWarning, match="reduces the gradients again") as told:
        step()
    [warning] = told
    for part in ("unnamed.0", "no_sync()"):
        assert part in str(warning.message)
    assert warning.filename == __file__
    step()  # does not warn: warnings are errors here


@pytest.mark.conformance
@pytest.mark.parametrize("shared", [False, True], ids=["alone", "two-optimizers"])
def test_a_parameter_that_one_rank_has_no_use_for(need_ranks: None, shared: bool) -> None:
    """backward() does not wait; averages arrive in step(), and the next step is normal."""
    used, sometimes = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(4))
    parameters = [[used], [sometimes]] if shared else [[used, sometimes]]
    optimizers = [
        hvd.DistributedOptimizer(torch.optim.SGD(part, 1.0), gradients_ready="backward")
        for part in parameters
    ]
    for step in range(4):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = (used * share()).sum()
        partly = step % 2 == 1
        if not (partly and hvd.rank() == 0):
            loss = loss + (sometimes * share()).sum()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            loss.backward()
        assert_all(used.grad, share() if partly and not shared else mean())
        if partly:
            assert ("without averages" in str([one.message for one in told])) == (
                step == 1 and not (shared and hvd.rank() == 0)
            )
            if not shared:
                with pytest.raises(AssertionError, match="zero_grad"):
                    optimizer.zero_grad()
        else:
            assert_all(sometimes.grad, mean())
        for optimizer in optimizers:
            optimizer.step()
        assert_all(used.grad, mean())
        assert_all(sometimes.grad, mean() - partly / hvd.size())


def test_losses_of_parts_of_a_model() -> None:
    """Each pass has the gradients of its part; their sum is that of a step."""
    first, second = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(4))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([first, second], 1.0), gradients_ready="backward"
    )
    with pytest.warns(UserWarning, match=r"unnamed\.[01] had none"):
        (first * share()).sum().backward()
    (second * share()).sum().backward()
    with pytest.raises(AssertionError, match="only if all of the optimizer's parameters") as no:
        (second * share()).sum().backward()
    assert "overlap_step" not in str(no.value)
    with pytest.warns(UserWarning, match="is lost"):
        optimizer.step()
    assert_all(first.detach(), -mean())


@pytest.mark.parametrize("depth", [1, 2])
def test_reentrant_checkpoints_are_one_pass(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    tell = rounds.Rounds.tell
    monkeypatch.setattr(rounds.Rounds, "tell", lambda self: told.append(1) or tell(self))
    model = make_model()
    optimizer = wrap(model, gradients_ready="backward")

    def forward(inputs: torch.Tensor, depth: int) -> torch.Tensor:
        if depth == 0:
            return model[1](model[0](inputs))
        return checkpoint(forward, inputs, depth - 1, use_reentrant=True)

    for step in range(2):
        optimizer.zero_grad()
        inputs = torch.ones(2, 6, dtype=torch.double, requires_grad=True)
        (model[2](forward(inputs, depth)).square().sum() * share()).backward()
        ready = [one.grad.clone() for one in model.parameters()]
        optimizer.step()
        assert all(map(torch.equal, ready, [one.grad for one in model.parameters()]))
        assert len(told) == step + 1


def test_accumulation_by_number(need_ranks: None) -> None:
    model = make_model()
    optimizer = wrap(model, gradients_ready="backward", backward_passes_per_step=2)
    for step in range(STEPS):
        optimizer.zero_grad()
        for i in range(2):
            loss_of(model, 2 * step + i, hvd.rank()).backward()
        before = [one.grad.clone() for one in model.parameters()]
        optimizer.step()
        for one, gradient in zip(model.parameters(), before, strict=True):
            assert torch.equal(one.grad, gradient)
        loss_of(model, 0, hvd.rank()).backward()  # as in a GAN: half of what a reduction needs
    assert_same_parameters(model, train_alone(sgd, passes=2))


def test_parameters_that_come_later_are_ready_too() -> None:
    model = make_model()
    model[0].requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(
        sgd(list(model[0].parameters())), model.named_parameters(), gradients_ready="backward"
    )
    optimizer.add_param_group({"params": list(model[2].parameters())})
    loss_of(model, 0, hvd.rank()).backward()
    reduced = [one.grad.clone() for one in model[2].parameters()]
    optimizer.step()
    for one, gradient in zip(model[2].parameters(), reduced, strict=True):
        assert torch.equal(one.grad, gradient)
    optimizer.zero_grad()
    model[0].requires_grad_(True)
    with pytest.warns(UserWarning, match="without averages"):  # once: then it is known
        loss_of(model, 1, hvd.rank()).backward()
    optimizer.step()
    optimizer.zero_grad()
    loss_of(model, 2, hvd.rank()).backward()
    reduced = [one.grad.clone() for one in model.parameters()]
    optimizer.step()
    for one, gradient in zip(model.parameters(), reduced, strict=True):
        assert torch.equal(one.grad, gradient)


@pytest.mark.parametrize("ready", ["step", "backward"])
def test_optimizers_that_share_parameters_reduce_them_once(ready: str) -> None:
    parameter = nn.Parameter(torch.zeros(4))
    optimizers = [
        hvd.DistributedOptimizer(
            torch.optim.SGD([parameter], 1.0), gradients_ready=ready, op=hvd.Sum
        )
        for _ in range(2)
    ]
    for step in range(2):
        optimizers[step].zero_grad()
        (parameter * share()).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            assert_all(parameter.grad, mean() * hvd.size())
        assert_all(parameter.detach(), -2 * mean() * hvd.size() * (step + 1))


def test_synchronize_twice_reduces_once() -> None:
    parameter, optimizer = one_parameter(4, op=hvd.Sum)
    (parameter * share()).sum().backward()
    optimizer.synchronize()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match="training slowdown"):
        optimizer.step()
    assert_all(parameter.detach(), -mean() * hvd.size())


def test_a_closure_after_synchronize() -> None:
    """Its gradients are reduced, and the warning is that of a step without one."""
    parameter, optimizer = one_parameter(4)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (parameter * share()).sum()
        loss.backward()
        return loss

    closure()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match="training slowdown") as told:
        optimizer.step(closure)
    assert told[0].filename == __file__
    assert_all(parameter.detach(), -mean())
    optimizer.step(closure)  # does not warn: warnings are errors here
    assert_all(parameter.detach(), -2 * mean())


def test_ranks_in_different_steps(need_ranks: None) -> None:
    """A rank may run steps without any agreement; the next one detects it."""
    parameter, optimizer = one_parameter(4, gradients_ready="backward")
    if hvd.rank() == 0:
        with optimizer.skip_synchronize():
            optimizer.step()
            optimizer.step()  # an odd number would leave the others waiting
    here, low, high = 2 * (hvd.rank() == 0), 0, 2
    with pytest.raises(
        hvd.MismatchError,
        match=f"different numbers.*round 1 of step {here}, others .*of step {high} or {low}$",
    ):
        (parameter * share()).sum().backward()
    optimizer.step()
    assert_all(parameter.detach(), -mean())


@pytest.mark.parametrize("ready", ["step", "backward"])
def test_a_closure_that_is_called_again(ready: str) -> None:
    model = make_model()
    alone = train_alone(lambda p: torch.optim.LBFGS(p, max_iter=1), steps=0)
    optimizer = wrap(model, lambda p: torch.optim.LBFGS(p, max_iter=3), gradients_ready=ready)
    expected = torch.optim.LBFGS(alone.parameters(), max_iter=3)

    def losses(model: nn.Module) -> torch.Tensor:
        return sum(loss_of(model, 0, rank) for rank in range(hvd.size())) / hvd.size()

    def closure(own: bool) -> torch.Tensor:
        (optimizer if own else expected).zero_grad()
        loss = losses(model if own else alone)  # equal on all ranks, as LBFGS requires
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(lambda: closure(True))
        expected.step(lambda: closure(False))
    assert_same_parameters(model, alone)


def test_ranks_that_join_have_done_fewer_steps(need_ranks: None) -> None:
    model = make_model()
    optimizer = wrap(model, gradients_ready="backward")
    last = hvd.size() - 1
    for _ in range(2):
        for step in range(3 if hvd.rank() != last else 2):
            optimizer.zero_grad()
            loss_of(model, step, hvd.rank()).backward()
            optimizer.step()
        hvd.join()
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)


def test_sparse_gradients_for_a_sparse_optimizer() -> None:
    def make() -> nn.Embedding:
        torch.manual_seed(2)
        return nn.Embedding(12, 3, sparse=True).double()

    model, alone = make(), make()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SparseAdam(list(model.parameters()), 0.1), sparse_as_dense=True
    )
    expected = torch.optim.SparseAdam(list(alone.parameters()), 0.1)
    ranks = range(hvd.size())

    def loss(model: nn.Module, step: int, rank: int) -> torch.Tensor:
        if step == 1 and rank == 0:
            return model.weight.new_zeros(())
        return model(torch.tensor([rank % 12, step])).square().sum()

    for step in range(3):
        optimizer.zero_grad()
        mine = loss(model, step, hvd.rank())
        if mine.requires_grad:
            mine.backward()
        optimizer.step()
        assert model.weight.grad.is_sparse
        expected.zero_grad()
        together = sum(loss(alone, step, rank) for rank in ranks) / hvd.size()
        if together.requires_grad:
            together.backward()
        expected.step()
    assert_same_parameters(model, alone)


def test_messages_name_what_the_user_uses() -> None:
    parameter, optimizer = one_parameter(4)
    (parameter * share()).sum().backward()
    with pytest.raises(AssertionError, match=r"zero_grad.*gradients_ready='backward'") as early:
        optimizer.zero_grad()
    with pytest.raises(
        AssertionError, match=r"no_sync\(\).*backward_passes_per_step.*gradients_ready='backward'"
    ) as many:
        (parameter * share()).sum().backward()
    assert "overlap" not in str(early.value) + str(many.value)
    with pytest.warns(UserWarning, match="is lost"):
        optimizer.step()


def test_messages_of_overlapped_steps() -> None:
    model = nn.Linear(2, 2)
    optimizer = wrap(model, overlap_step=True)
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(AssertionError, match="overlap_step=True") as many:
        model(torch.ones(1, 2)).sum().backward()
    assert "gradients_ready" not in str(many.value)
    with pytest.warns(UserWarning, match="is lost"):
        optimizer.step()


def test_wrong_options(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="gradients_ready='now' is neither"):
        one_parameter(2, gradients_ready="now")
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"gradients_ready='backward' is not .* overlap_step"):
        wrap(model, gradients_ready="backward", overlap_step=True)
    monkeypatch.setenv("HOROSCALE_GRADIENTS_READY", "backward")
    with pytest.raises(ValueError, match=r"HOROSCALE_GRADIENTS_READY='backward' is not"):
        wrap(model, overlap_step=True)
    assert wrap(model)._reducer.ready_in_backward
    assert not wrap(nn.Linear(2, 2), gradients_ready="step")._reducer.ready_in_backward


@pytest.mark.timeout(300)
def test_compiled_model() -> None:
    model = make_model()
    optimizer = wrap(model, gradients_ready="backward")
    compiled = torch.compile(model, backend="aot_eager")
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(compiled, step, hvd.rank()).backward()
        before = [one.grad.clone() for one in model.parameters()]
        optimizer.step()
        for one, gradient in zip(model.parameters(), before, strict=True):
            assert torch.equal(one.grad, gradient)
    assert_same_parameters(model, train_alone(sgd))
