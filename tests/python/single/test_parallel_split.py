"""How a sequential model is split into stages."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import horoscale.torch.parallel as par  # noqa: E402
from horoscale.torch.parallel.pipeline.split import measure, partition  # noqa: E402


def sums(costs: list[int], cuts: list[int]) -> list[int]:
    return [sum(costs[a:b]) for a, b in pairwise(cuts)]


@given(st.lists(st.integers(0, 20), min_size=1, max_size=9), st.data())
def test_partitions_are_the_best_of_all(costs: list[int], data: st.DataObject) -> None:
    parts = data.draw(st.integers(1, len(costs)))
    cuts = partition(costs, parts)
    assert cuts[0] == 0
    assert cuts[-1] == len(costs)
    assert len(cuts) == parts + 1
    assert all(a < b for a, b in pairwise(cuts))
    every = [
        sums(costs, [0, *inner, len(costs)])
        for inner in combinations(range(1, len(costs)), parts - 1)
    ]
    best = min((max(one), sum(x * x for x in one)) for one in every)
    ours = sums(costs, cuts)
    assert (max(ours), sum(x * x for x in ours)) == best


def test_large_models_are_cut_at_once() -> None:
    assert partition([1.0] * 400, 16) == list(range(0, 401, 25))


def test_layers_keep_their_names() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.Linear(2, 2))
    stages = par.split(model, 2, costs=[1, 1, 1, 3])
    assert [len(stage) for stage in stages] == [3, 1]
    names = [name for stage in stages for name in stage.state_dict()]
    assert names == list(model.state_dict())


def test_what_is_slow_is_alone() -> None:
    """A layer with a thousand times the work of the more numerous others."""
    torch.manual_seed(0)
    slow = nn.Sequential(*(nn.Linear(256, 256) for _ in range(40)))
    model = nn.Sequential(*(nn.Flatten() for _ in range(5)), slow)
    stages = par.split(model, 2, torch.randn(256, 256))
    assert [len(stage) for stage in stages] == [5, 1]


def test_measuring_leaves_no_trace() -> None:
    model = nn.Sequential(
        nn.Embedding(5, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Dropout(0.5)
    )
    model[0].weight.grad = gradient = torch.ones(5, 4)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    costs = measure(model, torch.tensor([1, 2, 3]), repeats=2)
    assert len(costs) == 4
    assert min(costs) > 0
    assert model[0].weight.grad is gradient
    assert model[1].weight.grad is None
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_arguments() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with pytest.raises(ValueError, match="a model of 2 layers can't have 3 stages"):
        par.split(model, 3)
    with pytest.raises(ValueError, match="needs a sample"):
        par.split(model, 2)
    with pytest.raises(ValueError, match="3 costs for 2 layers"):
        par.split(model, 2, costs=[1, 2, 3])
    with pytest.raises(ValueError, match="can't be negative"):
        par.split(model, 2, costs=[1, -2])
