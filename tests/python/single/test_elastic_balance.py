"""balance(): the pure decisions, and what a plan keeps of them."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horoscale import _journal
from horoscale.elastic import DataPlan, balance, load_balance
from horoscale.elastic.balancing import balanced, rebalanced, step_seconds

costs_of_ranks = st.lists(st.floats(1e-4, 1e2), min_size=1, max_size=6)


@given(costs_of_ranks, st.integers(0, 40))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_all_samples_are_dealt_out(costs: list[float], more: int) -> None:
    sizes = balanced(len(costs) + more, costs)
    assert sum(sizes) == len(costs) + more
    assert min(sizes) >= 1


@given(st.lists(st.integers(1, 9), min_size=2, max_size=3), st.integers(0, 6))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_no_other_sizes_are_better(costs: list[int], more: int) -> None:
    total = len(costs) + more
    all_sizes = product(range(1, total + 1), repeat=len(costs))
    best = min(step_seconds(sizes, costs) for sizes in all_sizes if sum(sizes) == total)
    # Rounding down may leave one sample more on a rank than the best solution.
    assert step_seconds(balanced(total, costs), costs) <= best + max(costs)


def test_sizes() -> None:
    assert balanced(64, [1.0, 1.0]) == [32, 32]
    assert balanced(96, [1.0, 2.0]) == [64, 32]
    assert balanced(96, [1.0, 0.0, 1.0]) == [32, 32, 32]  # unknown: like the others
    assert balanced(12, [0.0, 0.0, 0.0]) == [4, 4, 4]
    assert balanced(4, [1.0, 1e9, 1e9]) == [2, 1, 1]
    assert balanced(96, [1.0, 2.0], most=50) == [50, 46]
    assert balanced(4, [1.0, 1e9, 1e9], most=2) == [2, 1, 1]
    with pytest.raises(ValueError, match="3 samples can't be split over 4 ranks"):
        balanced(3, [1.0] * 4)
    with pytest.raises(ValueError, match="2 at most"):
        balanced(9, [1.0] * 4, most=2)


def test_a_small_gain_changes_nothing() -> None:
    assert rebalanced([50, 50], [1.0, 1.08], 0.05) == [50, 50]  # would gain 4 %
    assert rebalanced([50, 50], [1.0, 1.2], 0.05) == [55, 45]
    assert rebalanced([50, 50], [1.0, 1.2], 0.2) == [50, 50]
    assert rebalanced([51, 49], [0.0, 0.0], 0.05) == [51, 49]
    # Sizes for other speeds are reverted.
    assert rebalanced([64, 32], [1.0, 1.0], 0.05) == [48, 48]


@given(st.floats(0.0, 20.0), st.lists(st.floats(1.0, 4.0), min_size=2, max_size=5))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_sizes_come_to_rest(fixed: float, slowness: list[float]) -> None:
    """Part of a step does not depend on the samples; that distorts the cost of one."""
    sizes = [32] * len(slowness)
    seen = []
    for _ in range(30):
        costs = [fixed / n + slow for n, slow in zip(sizes, slowness, strict=True)]
        sizes = rebalanced(sizes, costs, 0.05)
        seen.append(sizes)
    assert seen[-1] == seen[-10]
    times = [fixed + n * slow for n, slow in zip(sizes, slowness, strict=True)]
    assert max(times) <= fixed + 32 * max(slowness) + 1e-9  # never worse than equal sizes


def test_a_plan_deals_out_by_speed() -> None:
    plan = DataPlan(1000, balance(48), shuffle=False)
    state = plan.state_dict()
    state["balance"] = {"places": ["0", "1"], "sizes": [64, 32], "costs": [1.0, 2.0], "steps": 3}
    plan.load_state_dict(state)
    assert plan.take(1, 2).indices == list(range(64, 96))
    again = DataPlan(1000, balance(48))
    again.load_state_dict(plan.state_dict())
    assert len(again.take(0, 2)) == 64
    # Remaining ranks keep their speed; a new one counts as their median.
    assert [len(share) for share in (again.take(rank, 3) for rank in range(3))] == [67, 33, 44]
    assert len(again.take(0, 1)) == 48


def test_a_plan_without_balance_reads_the_state_of_one_with_it() -> None:
    balancing = DataPlan(100, balance(4))
    balancing.take(0, 2)
    plain = DataPlan(100, 4)
    plain.load_state_dict(balancing.state_dict())
    assert plain.position == 8
    balancing.load_state_dict(plain.state_dict())
    assert len(balancing.take(1, 2)) == 4


def test_a_change_is_noted_for_the_status_page(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = SimpleNamespace(topology=SimpleNamespace(rank=0))
    monkeypatch.setattr(load_balance, "current_runtime", lambda: runtime)
    monkeypatch.setattr(load_balance, "_gather", lambda _: [1.0, 1.0])
    _journal.note("test", "before")
    before = _journal.since(0)[-1].number
    one = balance(48)
    for sizes in ([64, 32], [48, 48]):  # the second needs no change
        one.load_state_dict(
            {"places": ["0", "1"], "sizes": sizes, "costs": [1.0, 1.0], "steps": one.every}
        )
        one.decide()
    [note] = _journal.since(before)
    assert (note.kind, note.text) == ("balance", "batch sizes by rank are now 48, 48")


def test_arguments() -> None:
    for wrong in ({"batch_size": 0}, {"batch_size": 4, "most": 3}):
        with pytest.raises(ValueError, match="1 <= batch_size <= most"):
            balance(**wrong)
    with pytest.raises(ValueError, match="every=0"):
        balance(4, every=0)
    with pytest.raises(ValueError, match="hysteresis=1"):
        balance(4, hysteresis=1.0)
