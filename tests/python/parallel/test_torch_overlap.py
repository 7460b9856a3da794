"""DistributedOptimizer(overlap_step=True): the plain loop's results, whenever they are read."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import horoscale.torch as hvd

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "plain-sgd": lambda p: torch.optim.SGD(p, 0.1),
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
    "adamw-loop": lambda p: torch.optim.AdamW(p, 0.01, foreach=False),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01),
}
STEPS = 6


class Language(nn.Module):
    """Tied weights, parameters that their module's parent reads, a recurrent one, unused ones."""

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 8, sparse=sparse)
        self.recurrent = nn.LSTM(8, 8, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.unused = nn.Linear(3, 3)
        self.output = nn.Linear(8, 30)
        if not sparse:
            self.output.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.recurrent(self.embedding(tokens))
        hidden = hidden + self.attention(hidden, hidden, hidden)[0]
        return self.output(self.norm(hidden))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def loss_of(model: nn.Module) -> torch.Tensor:
    tokens = torch.randint(0, 30, (2, 5))
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


class Trained:
    """A model and its optimizer after some steps, and the observed values."""

    def __init__(self, overlap: bool, make: str = "sgd", sparse: bool = False, **options: Any):
        torch.manual_seed(0)
        self.model = Language(sparse)
        optimizer = OPTIMIZERS[make](self.model.parameters())
        self.optimizer = hvd.DistributedOptimizer(
            optimizer, self.model.named_parameters(), overlap_step=overlap, **options
        )
        self.seen: list[Any] = []
        self.overlapped = 0
        torch.manual_seed(hvd.rank() + 1)

    def step(self, passes: int = 1, backward: Callable[[torch.Tensor], object] | None = None):
        for _ in range(passes):
            loss = loss_of(self.model)
            self.seen.append(loss.item())
            (backward or torch.Tensor.backward)(loss)
        self.optimizer.step()
        self.note()
        self.optimizer.zero_grad()

    def note(self) -> None:
        overlap = self.optimizer._overlap
        self.overlapped += overlap is not None and overlap.outstanding

    def state(self) -> list[Any]:
        return [*self.seen, self.model.state_dict(), self.optimizer.state_dict()["state"]]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def compare(train: Callable[[Trained], object], overlaps: bool = True, **options: Any) -> None:
    """Train with and without overlap: results are equal, and steps overlapped where possible."""
    results = []
    for overlap in (False, True):
        trained = Trained(overlap, **options)
        train(trained)
        results.append(trained.state())
        assert bool(trained.overlapped) == (overlap and overlaps)
    assert same(*results)


def steps(trained: Trained) -> None:
    for _ in range(STEPS):
        trained.step()


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_like_the_plain_loop(make: str) -> None:
    compare(steps, make=make)


@pytest.mark.parametrize("options", [{"groups": 3}, {"compression": hvd.Compression.bf16}])
def test_with_other_options(options: dict[str, Any]) -> None:
    compare(steps, **options)


def test_sparse_gradients() -> None:
    compare(steps, make="plain-sgd", sparse=True)


def test_every_step_overlaps() -> None:
    trained = Trained(overlap=True)
    steps(trained)
    assert trained.overlapped == STEPS


def test_scheduler() -> None:
    """The learning rate at the time of step() counts."""

    def train(trained: Trained) -> None:
        scheduler = torch.optim.lr_scheduler.ExponentialLR(trained.optimizer, 0.5)
        for _ in range(STEPS):
            trained.step()
            scheduler.step()
            trained.note()

    compare(train)


def test_accumulation() -> None:
    def train(trained: Trained) -> None:
        for _ in range(STEPS):
            trained.step(passes=2)

    compare(train, backward_passes_per_step=2)


def test_zeros_instead_of_none() -> None:
    def train(trained: Trained) -> None:
        for _ in range(STEPS):
            trained.optimizer.zero_grad(set_to_none=False)
            loss_of(trained.model).backward()
            trained.optimizer.step()
            trained.note()

    compare(train)


def test_clipping() -> None:
    """Code that reads the gradients gets them, and a step without overlap."""

    def train(trained: Trained) -> None:
        for _ in range(STEPS):
            loss_of(trained.model).backward()
            trained.optimizer.synchronize()
            nn.utils.clip_grad_norm_(trained.model.parameters(), 0.1)
            with trained.optimizer.skip_synchronize():
                trained.optimizer.step()
            trained.note()
            trained.optimizer.zero_grad()

    compare(train, overlaps=False)


def test_clipping_now_and_then() -> None:
    def train(trained: Trained) -> None:
        for index in range(STEPS):
            loss_of(trained.model).backward()
            if index % 2:
                trained.optimizer.synchronize()
                with trained.optimizer.skip_synchronize():
                    trained.optimizer.step()
            else:
                trained.optimizer.step()
            trained.note()
            trained.optimizer.zero_grad()

    compare(train)


def test_grad_scaler() -> None:
    def train(trained: Trained) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
        for _ in range(STEPS):
            scaler.scale(loss_of(trained.model)).backward()
            scaler.step(trained.optimizer)
            scaler.update()
            trained.optimizer.zero_grad()

    compare(train, overlaps=False)


def test_closure_and_hooks() -> None:
    """They are called in every step as it happens."""

    def train(trained: Trained) -> None:
        def closure() -> torch.Tensor:
            trained.optimizer.zero_grad()
            loss = loss_of(trained.model)
            loss.backward()
            return loss

        for _ in range(2):
            trained.seen.append(trained.optimizer.step(closure).item())
        trained.optimizer.zero_grad()
        trained.optimizer.register_step_post_hook(lambda *_: trained.seen.append("step"))
        steps(trained)

    compare(train, overlaps=False)


READERS: dict[str, Callable[[Trained], object]] = {
    "attribute": lambda t: t.model.norm.weight.detach().clone(),
    "parameters": lambda t: [p.detach().clone() for p in t.model.parameters()],
    "state_dict": lambda t: {k: v.clone() for k, v in t.model.state_dict().items()},
    "deepcopy": lambda t: copy.deepcopy(t.model).state_dict(),
    "save": lambda t: torch.save(t.model, io.BytesIO()),
    "optimizer-state": lambda t: copy.deepcopy(t.optimizer.state_dict()),
    "optimizer-copy": lambda t: copy.deepcopy(t.optimizer).state_dict(),
    "evaluation": lambda t: t.model.eval()(torch.arange(5)[None]).detach(),
    "functional": lambda t: torch.func.functional_call(
        t.model, {"norm.bias": torch.ones(8)}, torch.arange(5)[None]
    ).detach(),
    "zero_grad-of-model": lambda t: t.model.zero_grad(),
    "freeze": lambda t: [p.requires_grad_(False) is None for p in t.model.unused.parameters()],
    "replace": lambda t: setattr(t.model.unused, "bias", None),
}


@pytest.mark.parametrize("reader", READERS)
def test_reader_between_steps(reader: str) -> None:
    def train(trained: Trained) -> None:
        for _ in range(3):
            trained.step()
            trained.seen.append(READERS[reader](trained))
            trained.model.train()

    compare(train)


def test_reader_past_the_modules() -> None:
    def train(trained: Trained) -> None:
        weight = trained.model.norm.weight
        for _ in range(3):
            trained.step()
            trained.optimizer.finish_step()
            trained.seen.append(weight.detach().clone())

    compare(train)


def test_use_past_the_modules_is_noticed() -> None:
    """A parameter that is used in the next backward pass without having been updated."""
    trained = Trained(overlap=True)
    weight = trained.model.unused.weight
    trained.step()
    assert trained.overlapped
    with pytest.raises(AssertionError, match=r"finish_step\(\)"):
        weight.sum().backward()
    trained.optimizer.finish_step()


def test_tensors_that_no_module_owns() -> None:
    values = []
    for overlap in (False, True):
        parameter = torch.ones(5, requires_grad=True)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([parameter], 0.1), overlap_step=overlap
        )
        for _ in range(3):
            optimizer.zero_grad()
            (parameter * (hvd.rank() + 1)).sum().backward()
            optimizer.step()
            values.append(parameter.detach().clone())
    assert same(values[:3], values[3:])


def test_compiled_model() -> None:
    def train(trained: Trained) -> None:
        model = torch.compile(trained.model, backend="eager")
        for _ in range(3):
            loss_of(model).backward()
            trained.optimizer.step()
            trained.note()
            trained.optimizer.zero_grad()

    compare(train, overlaps=False)


def test_two_optimizers_over_one_model() -> None:
    def train(trained: Trained) -> None:
        second = hvd.DistributedOptimizer(
            OPTIMIZERS["sgd"](trained.model.norm.parameters()),
            overlap_step=trained.optimizer._overlap is not None,
        )
        for _ in range(3):
            loss_of(trained.model).backward()
            trained.optimizer.step()
            second.step()
            trained.optimizer.zero_grad()
            second.zero_grad()

    compare(train, overlaps=False)


def test_failure_reaches_the_reader(need_ranks: None) -> None:
    """Contradicting ranks: all of them get the error when they read a parameter."""
    model = nn.Linear(3, 3)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.1), overlap_step=True
    )
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    model(torch.ones(1, 3)).sum().backward()
    [group] = [g for g in optimizer._reducer.groups if g.gradients[0].parameter is model.bias]
    assert group.in_flight
    optimizer.synchronize()
    optimizer.zero_grad()
    if hvd.rank() == 0:
        group.reduction = group.reduction._replace(prescale=2.0)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    with pytest.raises(hvd.MismatchError):
        model(torch.ones(1, 3))
    optimizer.finish_step()
    model(torch.ones(1, 3))


def test_optimizer_that_needs_all_gradients() -> None:
    model = nn.Linear(3, 3)
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.DistributedOptimizer(torch.optim.LBFGS(model.parameters()), overlap_step=True)
