"""Pipelines against one process that runs the same microbatches: the same bits."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

import horoscale.torch as hvd
import horoscale.torch.parallel as par
from horoscale.torch.parallel.pipeline.links import Remote

FEATURES = 12
SCHEDULES = ("gpipe", "1f1b", "zb-h1", "interleaved")
mse = nn.functional.mse_loss


@pytest.fixture
def axis() -> par.Axis:
    ranks = tuple(range(hvd.size()))
    return par.Axis("pp", ranks, hvd.rank(), hvd.global_process_set if hvd.size() > 1 else None)


def number_of_stages(schedule: str) -> int:
    return hvd.size() * (2 if schedule == "interleaved" else 1)


def block(width: int = FEATURES) -> nn.Module:
    return nn.Sequential(
        nn.Linear(width, 2 * width), nn.GELU(), nn.LayerNorm(2 * width), nn.Linear(2 * width, width)
    )


def build(number: int, make: Callable[[], nn.Module] = block) -> list[nn.Module]:
    """Stages with the same weights at each call."""
    torch.manual_seed(number)
    return [make().double() for _ in range(number)]


def batch(rows: int, seed: int = 0, width: int = FEATURES) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, dtype=torch.float64, generator=generator)
    return x, x.sin()


class Alone:
    """One process with all stages."""

    def __init__(self, stages: Sequence[nn.Module], microbatches: int) -> None:
        self.model = nn.Sequential(*stages)
        self._microbatches = microbatches

    def step(self, x: torch.Tensor, target: torch.Tensor, loss: Any = mse) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float64)
        parts = zip(
            x.tensor_split(self._microbatches), target.tensor_split(self._microbatches), strict=True
        )
        for part, expected in parts:
            one = loss(self.model(part), expected) * (part.shape[0] / x.shape[0])
            one.backward()
            total += one.detach()
        return total


def same_gradients(pipe: par.Pipeline, alone: Alone) -> None:
    for number, stage in pipe.stages.items():
        pairs = zip(stage.named_parameters(), alone.model[number].parameters(), strict=True)
        for (name, ours), reference in pairs:
            assert ours.grad is not None, name
            assert reference.grad is not None
            assert torch.equal(ours.grad, reference.grad), f"{number}.{name}"


def planned_operations() -> int:
    counts = hvd.metrics()["process_sets"]["0"]
    return sum(counts[key] for key in ("buckets", "one_hop", "cache_hits", "cache_misses"))


def train(
    axis: par.Axis,
    schedule: str,
    microbatches: int,
    rows: Sequence[int],
    make: Callable[[], nn.Module] = block,
    **options: Any,
) -> par.Pipeline:
    """Train on batches with these numbers of rows, and compare each step with one process."""
    number = number_of_stages(schedule)
    alone = Alone(build(number, make), microbatches)
    stages = [
        stage if index % axis.size == axis.rank else None
        for index, stage in enumerate(build(number, make))
    ]
    pipe = par.Pipeline(
        stages, axis, loss=mse, schedule=schedule, microbatches=microbatches, **options
    )
    optimizers = [torch.optim.AdamW(model.parameters(), 0.01) for model in (pipe, alone.model)]
    for step, count in enumerate(rows):
        x, target = batch(count, step)
        for optimizer in optimizers:
            optimizer.zero_grad()
        planned = planned_operations()
        given = (x if pipe.is_first else None, target if pipe.is_last else None)
        loss = pipe.step(*given)
        assert step == 0 or planned_operations() == planned
        assert torch.equal(loss, alone.step(x, target))
        same_gradients(pipe, alone)
        for optimizer in optimizers:
            optimizer.step()
    return pipe


@pytest.mark.conformance
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_same_bits_as_one_process(schedule: str, axis: par.Axis) -> None:
    train(axis, schedule, 8, [32, 32, 32])


def test_numbers_of_microbatches_and_rows(axis: par.Axis) -> None:
    generator = random.Random(17)
    for _ in range(12):
        schedule = generator.choice(SCHEDULES)
        microbatches = generator.randint(1, 9)
        rows = [generator.randint(microbatches, 40) for _ in range(2)]
        train(axis, schedule, microbatches, rows)


@pytest.mark.conformance
def test_evaluation(axis: par.Axis) -> None:
    def make() -> nn.Module:
        return nn.Sequential(block(), nn.Dropout(0.5))

    stages = build(hvd.size(), make)
    pipe = par.Pipeline(stages, axis, loss=mse, schedule="1f1b", microbatches=4)
    reference = nn.Sequential(*build(hvd.size(), make)).eval()
    for rows in (9, 4, 3, 1):  # including fewer than microbatches
        x, target = batch(rows, rows)
        with torch.no_grad():
            expected = reference(x)
        assert torch.allclose(pipe.evaluate(x, target), mse(expected, target), 1e-12)
        output = pipe.predict(x)
        assert (output is not None) == pipe.is_last
        if output is not None:
            assert torch.allclose(output, expected, 1e-12)
    assert all(module.training for module in pipe.stages.values())
    assert all(parameter.grad is None for parameter in pipe.parameters())


class Branches(nn.Module):
    """Takes and returns several tensors; some have no gradient, or are passed through."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(FEATURES, FEATURES)
        self.side = nn.Linear(FEATURES, FEATURES)

    def forward(self, x: torch.Tensor, *rest: torch.Tensor) -> tuple[torch.Tensor, ...]:
        memory, mask = rest or (x, x[:, 0] > 0)
        unused = self.side(memory) * mask[:, None]
        return torch.tanh(self.up(x)) + unused, memory, mask


def first_only(outputs: tuple[torch.Tensor, ...], target: torch.Tensor) -> torch.Tensor:
    return mse(outputs[0], target)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_several_tensors_between_stages(schedule: str, axis: par.Axis) -> None:
    number = number_of_stages(schedule)
    pipe = par.Pipeline(
        build(number, Branches), axis, loss=first_only, schedule=schedule, microbatches=3
    )
    stages = build(number, Branches)
    for seed in range(2):
        x, target = batch(10, seed)
        loss = pipe.step(x, target)
        total = torch.zeros((), dtype=torch.float64)
        for part, expected in zip(x.tensor_split(3), target.tensor_split(3), strict=True):
            values: tuple[torch.Tensor, ...] = (part,)
            for stage in stages:
                values = stage(*values)
            one = first_only(values, expected) * (part.shape[0] / 10)
            one.backward()
            total += one.detach()
        assert torch.equal(loss, total)
        for index, stage in pipe.stages.items():
            for ours, reference in zip(stage.parameters(), stages[index].parameters(), strict=True):
                assert torch.allclose(ours.grad, reference.grad, 1e-12, 1e-15)


class Shift(nn.Module):
    """Adds a weight with the microbatch's shape, whose gradient is the incoming one, unchanged."""

    def __init__(self, shape: tuple[int, int]) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.randn(shape, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.by


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_gradients_outlive_the_memory_they_came_in(schedule: str, axis: par.Axis) -> None:
    """Large enough to be read from the other rank's memory, whose slot is then reused."""
    width = 1500
    number = number_of_stages(schedule)

    def stages() -> list[nn.Module]:
        return build(number, lambda: nn.Sequential(Shift((4, width)), nn.ReLU(inplace=True)))

    alone = Alone(stages(), 5)
    pipe = par.Pipeline(stages(), axis, loss=mse, schedule=schedule, microbatches=5)
    viewed = hvd.metrics()["process_sets"]["0"]["messages_viewed"]
    for seed in range(3):
        x, target = batch(20, seed, width)
        assert torch.equal(pipe.step(x, target), alone.step(x.clone(), target))
        same_gradients(pipe, alone)
    if hvd.size() > 1:
        assert hvd.metrics()["process_sets"]["0"]["messages_viewed"] >= viewed + 3 * 5


def test_slots_are_used_again(axis: par.Axis) -> None:
    pipe = train(axis, "1f1b", 12, [24] * 5)
    assert pipe._wiring is not None
    for stage, link in pipe._wiring.forward.items():
        if isinstance(link, Remote) and stage in pipe.stages:
            # At most as many as the next rank holds, plus one that it is about to release.
            assert 1 <= len(link._ring) <= hvd.size() - hvd.rank() + 1


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = block()

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.inner, x, use_reentrant=False)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_checkpoints_inside_stages(schedule: str, axis: par.Axis) -> None:
    train(axis, schedule, 4, [9, 9], Checkpointed)


@pytest.mark.parametrize("schedule", ["gpipe", "zb-h1"])
def test_activations_in_a_file(schedule: str, axis: par.Axis, tmp_path: Path) -> None:
    offload = par.DiskOffload(tmp_path, least_bytes=1)
    train(axis, schedule, 4, [16], activations=offload)
    size = offload.file_bytes
    assert size > 4 * 4 * FEATURES * 8
    train(axis, schedule, 4, [16, 16], activations=offload)
    assert offload.file_bytes == size  # the same slots again


def test_activations_in_a_context_of_torchs_own(axis: par.Axis) -> None:
    train(axis, "1f1b", 4, [16, 16], activations=torch.autograd.graph.save_on_cpu)


def test_what_is_not_offloaded_is_freed_with_its_graph(tmp_path: Path) -> None:
    """Even if the graph was kept after a backward pass, as with zb-h1."""
    x = torch.ones(3, requires_grad=True)
    with par.DiskOffload(tmp_path)():
        result = x.tanh()  # its backward pass needs the result
    result.sum().backward(retain_graph=True)
    memory = StorageWeakRef(result.untyped_storage())
    del result
    assert memory.expired()


class Embedding(nn.Module):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(vocabulary, FEATURES))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding(tokens, self.table)


class Head(nn.Module):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(vocabulary, FEATURES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.table.t()


@pytest.mark.conformance
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("separately", [False, True])
def test_tied_embeddings(schedule: str, separately: bool, axis: par.Axis) -> None:
    number = number_of_stages(schedule)

    def stages() -> list[nn.Module]:
        inner = build(number)
        inner[0] = nn.Sequential(Embedding(9), inner[0])
        inner[-1] = nn.Sequential(inner[-1], Head(9))
        return [one.double() for one in inner]

    ends = stages()
    alone = nn.Sequential(*stages())
    first, last = "0.table" if number > 1 else "0.0.table", "1.table"
    alone[-1].get_submodule("1").table = alone[0].get_parameter(first)
    pipe = par.Pipeline(
        ends,
        axis,
        loss=nn.functional.cross_entropy,
        schedule=schedule,
        microbatches=3,
        tied=[[(0, first), (-1, last)]],
    )
    optimizers = [torch.optim.AdamW(model.parameters(), 0.01) for model in (pipe, alone)]
    for step in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for part in range(2):  # gradients of two steps accumulate
            generator = torch.Generator().manual_seed(10 * step + part)
            tokens, target = torch.randint(9, (2, 6), generator=generator)
            loss = pipe.step(tokens, target, sync_tied=not separately)
            expected = nn.functional.cross_entropy(alone(tokens), target)
            expected.backward()
            assert torch.allclose(loss, expected.detach(), 1e-12)
        if separately:
            pipe.sync_tied()
        for index, name in ((0, first), (len(ends) - 1, last)):
            if index in pipe.stages:
                ours = pipe.stages[index].get_parameter(name).grad
                assert torch.allclose(ours, alone[0].get_parameter(first).grad, 1e-10, 1e-14)
        for optimizer in optimizers:
            optimizer.step()
    tables = hvd.allgather_object(
        [
            pipe.stages[i].get_parameter(n)
            for i, n in ((0, first), (len(ends) - 1, last))
            if i in pipe.stages
        ]
    )
    copies = [one for some in tables for one in some]
    assert len(copies) == 2
    assert torch.equal(copies[0], copies[1])


def test_frozen_tied_parameters(axis: par.Axis) -> None:
    """They get no gradient, as in one process; an existing one is kept."""
    stages = [nn.Linear(4, 4) for _ in range(hvd.size())]
    pipe = par.Pipeline(
        stages, axis, loss=mse, microbatches=2, tied=[[(0, "weight"), (-1, "weight")]]
    )
    tied = [one.weight for n, one in pipe.stages.items() if n in (0, hvd.size() - 1)]
    x = torch.ones(4, 4)
    for one in tied:
        one.requires_grad_(False)
    pipe.step(x, x)
    assert all(one.grad is None for one in tied)
    for one in tied:
        one.grad = torch.ones(4, 4)
    pipe.step(x, x)
    assert all(torch.equal(one.grad, torch.ones(4, 4)) for one in tied)


def test_scaled_and_accumulated_gradients(axis: par.Axis) -> None:
    alone = Alone(build(hvd.size()), 4)
    pipe = par.Pipeline(build(hvd.size()), axis, loss=mse, microbatches=4)
    for seed in range(2):
        x, target = batch(8, seed)
        loss = pipe.step(x, target, scale=8.0)
        assert torch.equal(loss, alone.step(x, target))
    for number, stage in pipe.stages.items():
        for ours, reference in zip(
            stage.parameters(), alone.model[number].parameters(), strict=True
        ):
            assert torch.allclose(ours.grad, 8 * reference.grad, 1e-12)


def test_sums_of_losses(axis: par.Axis) -> None:
    def total(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output - target).square().sum()

    pipe = par.Pipeline(build(hvd.size()), axis, loss=total, microbatches=3, reduction="sum")
    x, target = batch(7)
    with torch.no_grad():
        expected = total(nn.Sequential(*build(hvd.size()))(x), target)
    assert torch.allclose(pipe.step(x, target), expected, 1e-12)


def test_lengths_that_change(axis: par.Axis) -> None:
    """Only the rows are fixed: the sequences of a batch may be longer than previous ones."""
    pipe = par.Pipeline(build(hvd.size()), axis, loss=mse, microbatches=2)
    reference = nn.Sequential(*build(hvd.size()))
    for length in (3, 3, 3, 200, 200, 1, 3, 3, 200):
        x = torch.randn(4, length, FEATURES, dtype=torch.float64)
        x = hvd.broadcast(x, 0)
        with torch.no_grad():
            expected = mse(reference(x), x)
        assert torch.allclose(pipe.step(x, x), expected, 1e-12)


def test_from_another_host(axis: par.Axis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links as between hosts: tensors are received before they are needed."""
    from horoscale.torch.parallel.pipeline import agreement

    far = agreement.Agreed
    monkeypatch.setattr(
        "horoscale.torch.parallel.pipeline.agreement.Agreed",
        lambda tag, hosts: far(tag, tuple(range(len(hosts)))),
    )
    for schedule in SCHEDULES:
        train(axis, schedule, 5, [17, 17, 17, 5, 5, 17])


def test_split_models_agree_on_costs(axis: par.Axis) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(2 * hvd.size() + 1))).double()
    stages = par.split(model, hvd.size(), torch.randn(4, 8, dtype=torch.float64), axis=axis)
    sizes = hvd.allgather_object([len(stage) for stage in stages])
    assert sizes == [sizes[0]] * hvd.size()
    pipe = par.Pipeline(stages, axis, loss=mse, microbatches=2)
    x = torch.ones(4, 8, dtype=torch.float64)
    assert torch.allclose(pipe.evaluate(x, x), mse(model(x), x), 1e-12)


class Positions(nn.Module):
    """Passes the incoming gradient on to its parameter, as a view."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(64, 512))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.positions.unsqueeze(0)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
def test_gradients_are_not_in_memory_that_is_used_again(schedule: str, axis: par.Axis) -> None:
    count = 4 * axis.size  # microbatches, of one row
    stages = [Positions() for _ in range(axis.size)]

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output * target).sum()

    pipe = par.Pipeline(
        stages, axis, loss=loss, schedule=schedule, microbatches=count, reduction="sum"
    )
    target = torch.arange(1.0, count + 1).view(count, 1, 1).expand(count, 64, 512)
    for _ in range(2):
        pipe.module.zero_grad()
        pipe.step(torch.zeros(count, 64, 512), target)
        pipe.evaluate(torch.zeros(count, 64, 512), target)
        for parameter in pipe.parameters():
            assert parameter.grad.unique().tolist() == [count * (count + 1) / 2]
