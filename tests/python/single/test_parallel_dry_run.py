"""The predictions of par.memory(), and the times of a model's units, without ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from support.planning_models import PLAN, TRANSFORMER_PLAN, cross_entropy, make_batch, make_model
from torch import nn

import horoscale.torch.parallel as par
from horoscale.torch.parallel.planning.dry_run import dry_run, rehearse, units_of
from horoscale.torch.parallel.planning.memory import zero_state
from horoscale.torch.parallel.planning.profile import (
    Timing,
    by_formula,
    interpolate,
    profile,
    windows,
)
from horoscale.torch.parallel.planning.recomputation import recompute_segments
from horoscale.torch.parallel.planning.stand_ins import Collective


@contextmanager
def saving(own: set[int], sizes: dict[int, int]) -> Iterator[None]:
    """Counts what autograd saves of real tensors, each storage once."""
    kept = []  # so that no address is reused

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept.append(tensor)
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield


@pytest.mark.parametrize("kind", ["mlp", "transformer", "convolutions"])
def test_the_dry_run_counts_what_training_has(kind: str) -> None:
    model, (x, target) = make_model(kind), make_batch(kind)
    own = {one.untyped_storage().data_ptr() for one in (*model.parameters(), *model.buffers())}
    sizes: dict[int, int] = {}
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = x.clone().requires_grad_() if x.is_floating_point() else x
    with saving(own, sizes):
        loss = cross_entropy(model(inputs), target)
    loss.backward()
    optimizer.step()
    state = [
        value
        for values in optimizer.state.values()
        for value in values.values()
        if isinstance(value, torch.Tensor)
    ]
    said = par.memory(make_model(kind), (x, target), {}, loss=cross_entropy).ranks[0]
    whole = [*model.parameters(), *model.buffers()]
    assert said.parameters == sum(one.nbytes for one in whole)
    assert said.gradients == sum(one.grad.nbytes for one in model.parameters())
    assert said.optimizer == sum(one.nbytes for one in state)
    assert said.activations == sum(sizes.values())


def test_nothing_is_allocated() -> None:
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(1 << 18, 1 << 18) for _ in range(4)))  # 1 TiB
        batch = (torch.empty(8, 1 << 18), torch.empty(8, dtype=torch.long))
    said = par.memory(model, batch, {"pp": 4}, loss=cross_entropy, microbatches=4)
    assert [one.parameters for one in said.ranks] == [4 * ((1 << 36) + (1 << 18))] * 4
    # 1F1B: 4 to 1 microbatches in flight, of 2 rows each; a linear layer saves its input.
    inputs = [2 * 4 << 18] * 4
    assert [one.activations // size for one, size in zip(said.ranks[:3], inputs, strict=False)] == [
        4, 3, 2,
    ]  # fmt: skip
    assert "1.00 TiB" not in str(said)
    assert str(said).count("\n") == 6


def test_a_transformers_blocks_take_what_the_formulas_say() -> None:
    """As in docs/parallel_costs.md: L (12 h² + 13 h), L ((12 h² + 7 h) / t + 6 h) over tp."""
    model, batch = make_model("transformer", layers=2), make_batch("transformer")
    head, h = model[-1], 16
    head_bytes = sum(one.nbytes for one in (*model[0].parameters(), *head.parameters()))
    for tp in (1, 2, 4):
        said = par.memory(
            model, batch, {"tp": tp}, loss=cross_entropy, tensor_parallel=TRANSFORMER_PLAN
        )
        of_blocks = 2 * ((12 * h * h + 7 * h) // tp + 6 * h) * 4
        assert said.ranks[0].parameters == of_blocks + head_bytes


def test_microbatches_recomputation_and_zero_take_less() -> None:
    model, batch = make_model("mlp", layers=12), make_batch("mlp")

    def of(sizes: dict[str, int], **options: object) -> object:
        return par.memory(model, batch, sizes, loss=cross_entropy, **options).ranks[0]

    whole = of({"dp": 2})
    assert of({"dp": 2}, microbatches=4).activations < whole.activations / 3
    for how in (True, "sqrt"):
        assert of({"dp": 2}, recompute=how).activations < whole.activations / 3
    selective = of({"dp": 2}, recompute="selective")
    assert of({"dp": 2}, recompute=True).activations < selective.activations < whole.activations
    assert of({"dp": 2}, recompute="sqrt").activations < of({"dp": 2}, recompute=True).activations
    one, two, three = (of({"dp": 2}, stage=stage) for stage in (1, 2, 3))
    assert one.optimizer * 2 == whole.optimizer
    assert two.gradients * 2 == whole.gradients
    assert three.parameters < whole.parameters


def test_each_averaged_gradient_has_a_place() -> None:
    """Whatever HOROSCALE_FUSION_THRESHOLD is: see the table of docs/zero.md."""
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(1 << 13, 1 << 13, bias=False) for _ in range(4)))
        batch = (torch.empty(8, 1 << 13), torch.empty(8, dtype=torch.long))
    unit = 4 << 26

    def buckets(stage: int, microbatches: int = 1, dp: int = 2) -> int:
        said = par.memory(
            model, batch, {"dp": dp}, loss=cross_entropy, stage=stage, microbatches=microbatches
        )
        return said.ranks[0].buckets

    assert buckets(0, dp=1) == 0
    assert buckets(0) == 4 * unit
    assert buckets(1) == 2 * unit
    assert buckets(2) == buckets(3) == 2 * unit
    assert buckets(2, microbatches=2) == 4 * unit


def test_zero_divides_what_its_paper_says() -> None:
    assert zero_state(8, 8, 16, 4, 0) == (8, 8, 16)
    assert zero_state(8, 8, 16, 4, 1) == (8, 8, 4)
    assert zero_state(8, 8, 16, 4, 2) == (8, 2, 4)
    assert zero_state(8, 8, 16, 4, 3) == (2, 2, 4)
    assert zero_state(8, 8, 16, 4, 3, gathered=3) == (5, 2, 4)


def test_shared_parameters_count_once() -> None:
    model = nn.Sequential(nn.Embedding(8, 8), nn.Linear(8, 8, bias=False))
    model[1].weight = model[0].weight
    batch = (torch.zeros(4, dtype=torch.long), torch.zeros(4, dtype=torch.long))
    one = par.memory(model, batch, {}, loss=cross_entropy)
    assert one.ranks[0].parameters == 256
    two = par.memory(model, batch, {"pp": 2}, loss=cross_entropy)
    assert [each.parameters for each in two.ranks] == [256, 256]


@pytest.mark.parametrize(
    ("sizes", "options", "message"),
    [
        ({"tp": 2}, {}, "tp=2 needs a plan"),
        ({"dp": 7}, {"microbatches": 9}, "32 rows can't be divided among dp=7 ranks with 9"),
        ({"pp": 9}, {}, "can't be cut into 9 stages"),
        ({"pp": 0}, {}, "pp=0: at least 1"),
        ({}, {"stage": 4}, "stage=4 is none of 0 to 3"),
        ({}, {"recompute": "all"}, "recompute='all' is none of"),
        ({}, {"cuts": [0, 1]}, r"cuts=\[0, 1\] don't cut 4 units into 1"),
    ],
)
def test_what_cannot_be(sizes: dict[str, int], options: dict[str, object], message: str) -> None:
    model, batch = make_model("mlp"), make_batch("mlp")
    with pytest.raises(ValueError, match=message):
        par.memory(model, batch, sizes, loss=cross_entropy, **options)


# ---------------------------------------------------------------- units and their times


class Residual(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + super().forward(x)


def test_what_does_not_run_its_children_once_each_is_not_cut() -> None:
    """Dividing it into stages would change the computation."""
    tanh = nn.Tanh()
    chain = nn.Sequential(nn.Linear(8, 8), tanh, nn.Linear(8, 8))
    twice = nn.Sequential(*chain, tanh)
    residual = Residual(*chain)
    assert list(units_of(chain)) == ["0", "1", "2"]
    assert units_of(twice) == {"": twice}
    assert units_of(residual) == {"": residual}
    x = torch.randn(4, 8)
    for model in (chain, twice, residual):
        expected = model(x)
        recompute_segments(model)
        assert torch.equal(model(x), expected)


def test_divided_layers_send_and_compute_their_share() -> None:
    x, target = make_batch("mlp")
    whole, half = (
        dry_run(rehearse(make_model("mlp"), tp, PLAN), x, target, cross_entropy, torch.optim.SGD)
        for tp in (1, 2)
    )
    assert not whole[0].sent
    assert half[0].sent == (
        Collective("allreduce", x.nbytes, False),
        Collective("allreduce", x.nbytes, True),
    )
    assert half[0].forward_flops * 2 == whole[0].forward_flops == 2 * 2 * x.shape[0] * 8 * 16
    assert half[0].backward_flops * 2 == whole[0].backward_flops


def test_timing_leaves_the_model_as_it_is() -> None:
    model, (x, target) = make_model("convolutions"), make_batch("convolutions")
    before = {name: one.clone() for name, one in model.state_dict().items()}
    numbers = torch.get_rng_state()
    timings = profile(rehearse(model), x, target, cross_entropy, torch.optim.AdamW, repeats=1)
    assert len(timings) == len(model)
    assert all(one.forward > 0 and one.backward > 0 for one in timings)
    assert torch.equal(torch.get_rng_state(), numbers)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert all(one.grad is None for one in model.parameters())


def test_between_measured_rows_times_are_on_lines() -> None:
    measured = {2: [Timing(1.0, 2.0, 3.0)], 6: [Timing(3.0, 4.0, 3.0)]}
    assert interpolate(2, measured) == measured[2]
    assert interpolate(4, measured) == [Timing(2.0, 3.0, 3.0)]
    assert interpolate(12, measured) == [Timing(6.0, 8.0, 3.0)]
    assert interpolate(1, measured) == [Timing(0.5, 1.0, 3.0)]


def test_units_that_have_memory_run_together() -> None:
    assert windows(["a", "b", "b", "c"], [1, 1, 1, 1]) == [[0, 1, 2, 3]]
    assert windows(["a", "b", "c"], [100 << 20, 100 << 20, 100 << 20]) == [[0, 1], [2]]
    many = windows(["a", *["b"] * 40, "c"], [1] * 42)
    assert many == [list(range(9)), [41]]  # eight similar ones are enough


def test_a_model_without_memory_is_costed_by_its_operations() -> None:
    x, target = make_batch("mlp")
    found = dry_run(rehearse(make_model("mlp")), x, target, cross_entropy, torch.optim.AdamW)
    timings = by_formula(found, 1e6, 1e30)
    assert timings[0].forward == pytest.approx(found[0].forward_flops / 1e6)
