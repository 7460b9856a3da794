"""DistributedOptimizer(sync_every=...) over its life: options, checkpoints, parameter changes."""

from __future__ import annotations

import copy
import io
import pickle
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
from support.torch_training import loss_of, make_model, sgd, wrap
from torch import nn

import horoscale.torch as hvd
import horoscale.torch.elastic as elastic
from horoscale.torch.training_rounds import Anchor, Travel


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sync_every": 0}, "sync_every=0: expected a number of steps"),
        ({"sync_every": True}, "sync_every=True: expected"),
        ({"sync_every": 1.5}, r"sync_every=1\.5: expected"),
        ({"sync_every": 2, "op": hvd.Sum}, "needs op=Average, not Sum"),
        ({"sync_every": 2, "gradient_predivide_factor": 2.0}, "gradient_predivide_factor=2.0"),
        ({"sync_every": 2, "groups": 2}, "groups=2 is not possible"),
        ({"sync_every": 2, "num_groups": 2}, "num_groups=2 is not possible"),
        ({"sync_every": 2, "sparse_as_dense": True}, "sparse_as_dense=True is not possible"),
        ({"sync_every": 2, "overlap_step": True}, "overlap_step=True is not possible"),
        ({"sync_every": 2, "gradients_ready": "backward"}, "gradients_ready='backward' is not"),
        ({"sync_every": 2, "compression": hvd.Compression.powersgd(2)}, r"powersgd\(2\)"),
        ({"sync_every": 2, "backward_passes_per_step": 0}, "at least one pass"),
        ({"sync_every": 2, "outer_optimizer": lambda tensors: None}, "returned None"),
        (
            {"sync_every": 2, "outer_optimizer": lambda tensors: sgd(tensors[:1])},
            "not one of exactly the tensors",
        ),
        ({"outer_optimizer": OUTER["nesterov"]}, "outer_optimizer needs sync_every"),
    ],
)
def test_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrap(make_model(), **options)


def test_is_the_users_optimizer() -> None:
    model = make_model()
    plain = sgd(list(model.parameters()))
    text = repr(plain)
    optimizer = hvd.DistributedOptimizer(plain, sync_every=2, gradients_ready="step")
    assert optimizer is plain
    assert isinstance(optimizer, torch.optim.SGD)
    assert repr(optimizer) == text
    assert optimizer.outer_optimizer is None
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedOptimizer(optimizer)
    for copied in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert type(copied) is torch.optim.SGD
    optimizer.set_loss_scale(2.0)
    with pytest.raises(ValueError, match="positive"):
        optimizer.set_loss_scale(0.0)


@pytest.mark.parametrize("wrapped_first", [True, False])
def test_schedulers(wrapped_first: bool) -> None:
    """One for the local steps, and one for the outer steps."""

    def halve(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    model = make_model()
    plain = sgd(list(model.parameters()))
    scheduler = None if wrapped_first else halve(plain)
    optimizer = hvd.DistributedOptimizer(
        plain, model.named_parameters(), sync_every=2, outer_optimizer=OUTER["nesterov"]
    )
    scheduler = scheduler or halve(optimizer)
    outer = halve(optimizer.outer_optimizer)
    for step in range(4):
        train(model, optimizer, range(step, step + 1))
        scheduler.step()
        if optimizer.local_steps == 0:
            outer.step()
    assert optimizer.local_steps == 0
    assert optimizer.param_groups[0]["lr"] == 0.1 / 16
    assert optimizer.outer_optimizer.param_groups[0]["lr"] == 0.7 / 4
    assert_same_bits(model)


@pytest.mark.parametrize("way", ["plain", "unscale"])
def test_grad_scaler(way: str) -> None:
    """A rank skips a step, and all still synchronize in the same call."""
    model = make_model()
    optimizer = wrap(model, sync_every=2)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=100)
    for step in range(4):
        optimizer.zero_grad()
        overflow = float("inf") if step == 1 and hvd.rank() == 0 else 1.0
        scaler.scale(loss_of(model, step, hvd.rank()) * overflow).backward()
        if way == "unscale":
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        assert optimizer.local_steps == (step + 1) % 2
    assert scaler.get_scale() == (4.0 if hvd.rank() == 0 else 8.0)
    assert_same_bits(model)

    def loss(model: nn.Module, step: int, rank: int) -> torch.Tensor:
        return loss_of(model, [0, 2, 3][step] if rank == 0 else step, rank)

    others = hvd.size() - 1
    assert_alike(model, train_alone(sgd, None, [[1] + [2] * others, [2] * hvd.size()], loss=loss))


def test_grad_scaler_with_a_fused_optimizer() -> None:
    """It unscales gradients in its own kernel."""
    model, alone = make_model(), make_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, fused=True), sync_every=2
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step in range(2):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, step, hvd.rank())).backward()
        scaler.step(optimizer)
        scaler.update()
    plain = hvd.DistributedOptimizer(torch.optim.SGD(alone.parameters(), lr=0.1), sync_every=2)
    train(alone, plain, range(2))
    assert_alike(model, alone)


@pytest.mark.parametrize("outer", OUTER)
def test_parameter_group_added_within_a_round(outer: str) -> None:
    model, alone = make_model(), make_model()
    optimizer = hvd.DistributedOptimizer(
        sgd(list(model[0].parameters())),
        model.named_parameters(),
        sync_every=3,
        outer_optimizer=OUTER[outer],
    )
    train(model, optimizer, range(1))
    model.zero_grad()
    optimizer.add_param_group({"params": list(model[2].parameters())})
    train(model, optimizer, range(1, 6))
    assert_same_bits(model)
    before = [one.detach().clone() for one in alone.parameters()]
    assert not any(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))


def test_frozen_and_unused_parameters() -> None:
    """A frozen one has no anchor; without a gradient on a rank it counts as unchanged there."""
    model = make_model()
    model[0].weight.requires_grad_(False)
    frozen = model[0].weight.detach().clone()
    unused = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    parameters = [*model.parameters(), unused]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.1), sync_every=2)
    before = hvd.metrics()["process_sets"]["0"]["operations"]
    for step in range(2):
        optimizer.zero_grad()
        loss = loss_of(model, step, hvd.rank())
        if hvd.rank() == 0:
            loss = loss + unused.sum()
        loss.backward()
        optimizer.step()
    assert torch.equal(model[0].weight, frozen)
    torch.testing.assert_close(unused.detach(), torch.full_like(unused, -0.2 / hvd.size()))
    # An agreement and four parameters: one of five is frozen.
    assert hvd.metrics()["process_sets"]["0"]["operations"] - before == 5
    model[0].weight.requires_grad_(True)
    train(model, optimizer, range(2, 4))
    assert not torch.equal(model[0].weight, frozen)
    assert_same_bits(model)


@pytest.mark.parametrize("stop", [2, 3])
@pytest.mark.parametrize("outer", OUTER)
def test_checkpoint(outer: str, stop: int) -> None:
    """Training resumed from a checkpoint, even within a round, is identical bit by bit."""
    options = {"sync_every": 2, "outer_optimizer": OUTER[outer]}
    model = make_model()
    optimizer = wrap(model, **options)
    train(model, optimizer, range(stop))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    train(model, optimizer, range(stop, 6))

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = make_model()
    again = wrap(resumed, **options)
    resumed.load_state_dict(saved["model"])
    again.load_state_dict(saved["optimizer"])
    assert again.local_steps == stop % 2
    train(resumed, again, range(stop, 6))
    for one, other in zip(resumed.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_checkpoint_has_an_anchor_only_within_a_round() -> None:
    model = make_model()
    optimizer = wrap(model, sync_every=2)
    for step in range(3):
        saved = optimizer.state_dict()["horoscale_local_sgd"]
        assert len(saved["anchors"]) == (4 if step % 2 else 0)
        train(model, optimizer, range(step, step + 1))


def test_plain_checkpoint_begins_a_round() -> None:
    model = make_model()
    optimizer = wrap(model, sync_every=2)
    train(model, optimizer, range(1))
    optimizer.load_state_dict(sgd(list(make_model().parameters())).state_dict())
    assert optimizer.local_steps == 0


def test_checkpoint_of_another_outer_optimizer() -> None:
    def two_groups(tensors: list[torch.Tensor]) -> torch.optim.Optimizer:
        return sgd([{"params": tensors[:1]}, {"params": tensors[1:]}])  # type: ignore[list-item]

    model = make_model()
    saved = wrap(model, sync_every=2, outer_optimizer=OUTER["adam"]).state_dict()
    other = wrap(make_model(), sync_every=2, outer_optimizer=two_groups)
    with pytest.raises(ValueError, match="has 1 groups of parameters, this one 2"):
        other.load_state_dict(saved)


@pytest.mark.parametrize("outer", OUTER)
def test_elastic_state_within_a_round(outer: str) -> None:
    """Each rank returns to its own parameters of the last commit, and to the shared anchor."""
    model = make_model()
    optimizer = wrap(model, sync_every=3, outer_optimizer=OUTER[outer])
    state = elastic.TorchState(model, optimizer, step=0)
    train(model, optimizer, range(4))
    state.step = 4
    state.save()
    train(model, optimizer, range(4, 7))
    state.restore()
    assert (state.step, optimizer.local_steps) == (4, 1)
    train(model, optimizer, range(4, 6))
    assert_same_bits(model)
    assert_alike(model, train_alone(sgd, OUTER[outer], same_rounds(6, 3, hvd.size())))


def test_elastic_sync_within_a_round(need_ranks: None) -> None:
    """All continue from one rank's parameters, and from the shared anchor."""
    model = make_model()
    optimizer = wrap(model, sync_every=3, outer_optimizer=OUTER["nesterov"])
    train(model, optimizer, range(4))
    state = elastic.TorchState(model, optimizer, step=4)
    state.sync()
    assert optimizer.local_steps == 1
    assert_same_bits(model)
    train(model, optimizer, range(4, 6))
    assert optimizer.local_steps == 0
    assert_same_bits(model)


def test_several_optimizers() -> None:
    """Each has its own rounds and operations."""
    model = make_model()
    optimizers: list[Any] = [
        hvd.DistributedOptimizer(sgd(list(part.parameters())), sync_every=every)
        for part, every in ((model[0], 2), (model[2], 3))
    ]
    for step in range(6):
        model.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        for optimizer in optimizers:
            optimizer.step()
    assert_same_bits(model)


def test_a_synchronization_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next step retries."""
    model = make_model()
    optimizer = wrap(model, sync_every=2, outer_optimizer=OUTER["adam"])
    train(model, optimizer, range(1))
    own: list[torch.Tensor] = []

    def fail(averages: list[torch.Tensor]) -> None:
        own.extend(one.detach().clone() for one in model.parameters())
        raise hvd.HorovodInternalError("a rank is gone")

    start = Anchor.start

    def start_and_fail(self: Anchor, travel: Travel, scale: float) -> Any:
        finish = start(self, travel, scale)
        if self.parameter is not model[0].bias:
            return finish
        return lambda: fail([finish()])

    with monkeypatch.context() as patched:
        patched.setattr(Anchor, "start", start_and_fail)
        with pytest.raises(hvd.HorovodInternalError, match="is gone"):
            train(model, optimizer, range(1, 2))
    for one, before in zip(model.parameters(), own, strict=True):
        assert torch.equal(one, before)
    assert optimizer.local_steps == 2
    train(model, optimizer, range(2, 3))
    assert optimizer.local_steps == 0
    assert_same_bits(model)
    assert_alike(model, train_alone(sgd, OUTER["adam"], [[3] * hvd.size()]))
