"""Training loops that clip, scale, accumulate or train two networks, compared with DDP."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from support.torch_training import STEPS, loss_of, make_model, sgd, wrap
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import horoscale.torch as hvd

LOSS = nn.BCEWithLogitsLoss()


@pytest.fixture(scope="module", autouse=True)
def process_group() -> Iterator[None]:
    """torch.distributed on the same ranks, over Gloo."""
    with tempfile.TemporaryDirectory() as folder:
        file = hvd.broadcast_object(str(Path(folder) / "store"), 0)
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{file}",
            rank=hvd.rank(),
            world_size=hvd.size(),
            timeout=timedelta(seconds=30),
        )
        yield
        hvd.barrier()
        torch.distributed.destroy_process_group()
        hvd.barrier()  # if the store's folder is removed early, the process aborts


def sample(step: int, *shape: int) -> torch.Tensor:
    """This rank's input for a step."""
    random = torch.Generator().manual_seed(100 * step + hvd.rank())
    return torch.randn(*shape, generator=random, dtype=torch.float64)


class Loop:
    """A way to distribute training: the lines that its script needs."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.seen: list[torch.Tensor] = []  # norms that the script has logged

    def distribute(
        self, model: nn.Module, make: Any = sgd, **options: Any
    ) -> tuple[nn.Module, Any]:
        if self.kind == "ddp":
            return DistributedDataParallel(model), make(list(model.parameters()))
        return model, wrap(model, make, gradients_ready=self.kind, **options)

    def ready(self, *optimizers: Any) -> None:
        """Make sure that `.grad` has averages, as a script written for "step" does."""
        if self.kind == "step":
            for optimizer in optimizers:
                optimizer.synchronize()

    def step(self, optimizer: Any, step: Callable[[], Any] | None = None) -> None:
        """Take the step after ready()."""
        if self.kind != "step":
            (step or optimizer.step)()
            return
        with optimizer.skip_synchronize():
            (step or optimizer.step)()


def clipping(loop: Loop) -> nn.Module:
    plain = make_model()
    model, optimizer = loop.distribute(plain)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        loop.ready(optimizer)
        loop.seen.append(nn.utils.clip_grad_norm_(model.parameters(), 0.05))
        assert loop.seen[-1] > 0.05  # it has an effect
        loop.step(optimizer)
    return plain


def scaling(loop: Loop) -> nn.Module:
    plain = make_model()
    model, optimizer = loop.distribute(plain)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=100)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, step, hvd.rank())
        if step == 1 and hvd.rank() == 0:
            loss = loss * float("inf")  # no rank takes this step
        scaler.scale(loss).backward()
        loop.ready(optimizer)
        scaler.unscale_(optimizer)
        loop.seen.append(nn.utils.clip_grad_norm_(model.parameters(), 0.05))
        loop.step(optimizer, lambda: scaler.step(optimizer))
        scaler.update()
    assert scaler.get_scale() == 4.0
    return plain


def accumulating(loop: Loop) -> nn.Module:
    plain = make_model()
    model, optimizer = loop.distribute(plain)
    for step in range(STEPS):
        optimizer.zero_grad()
        with (model if loop.kind == "ddp" else optimizer).no_sync():
            for i in range(2):
                loss_of(model, 3 * step + i, hvd.rank()).backward()
        loss_of(model, 3 * step + 2, hvd.rank()).backward()
        loop.ready(optimizer)
        loop.seen.append(nn.utils.clip_grad_norm_(model.parameters(), 0.05))
        loop.step(optimizer)
    return plain


def networks(loop: Loop) -> tuple[nn.Module, ...]:
    torch.manual_seed(7)
    generator = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 6)).double()
    critic = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    return generator, critic


def gan(loop: Loop) -> nn.Module:
    """One backward pass for the critic's step; the generator's passes through the critic."""
    plain = networks(loop)
    (generator, optimizer_g), (critic, optimizer_d) = map(loop.distribute, plain)
    ones, zeros = torch.ones(4, 1).double(), torch.zeros(4, 1).double()
    for step in range(STEPS):
        fake = generator(sample(step, 4, 3))
        # Clears the gradients of the generator's pass, in either way.
        (optimizer_d if step % 2 else critic).zero_grad()
        both = critic(torch.cat([sample(step + 50, 4, 6), fake.detach()]))
        LOSS(both, torch.cat([ones, zeros])).backward()
        optimizer_d.step()
        optimizer_g.zero_grad()
        LOSS(critic(fake), ones).backward()
        optimizer_g.step()
    return nn.ModuleList(plain)


def dcgan(loop: Loop) -> nn.Module:
    """Two backward passes for the critic's step, as in PyTorch's tutorial."""
    plain = networks(loop)
    (generator, optimizer_g), (critic, optimizer_d) = map(loop.distribute, plain)
    ones, zeros = torch.ones(4, 1).double(), torch.zeros(4, 1).double()
    for step in range(STEPS):
        critic.zero_grad()
        LOSS(critic(sample(step + 50, 4, 6)), ones).backward()
        fake = generator(sample(step, 4, 3))
        LOSS(critic(fake.detach()), zeros).backward()
        optimizer_d.step()
        generator.zero_grad()
        LOSS(critic(fake), ones).backward()
        optimizer_g.step()
    return nn.ModuleList(plain)


@pytest.mark.conformance
@pytest.mark.parametrize(
    ("script", "kind"),
    [
        *((script, kind) for script in (clipping, scaling, accumulating) for kind in ("step",)),
        *((script, "backward") for script in (clipping, scaling, accumulating, gan, dcgan)),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
@pytest.mark.filterwarnings("ignore:a further backward")
def test_loops_as_with_ddp(script: Callable[[Loop], nn.Module], kind: str) -> None:
    ours, ddp = Loop(kind), Loop("ddp")
    model, expected = script(ours), script(ddp)
    for one, other in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(ours.seen, ddp.seen, rtol=1e-5, atol=1e-8, equal_nan=True)
    assert not any(torch.isnan(one).any() for one in model.parameters())
