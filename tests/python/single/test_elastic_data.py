"""DataPlan and ElasticSampler: each sample once, however the ranks change."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horoscale.elastic import DataPlan
from horoscale.elastic.data_plan import in_proportion
from horoscale.torch.elastic import ElasticSampler


class Ranks:
    """The plans of all ranks, the model that they train, and its last commit."""

    def __init__(self, length: int, size: int, batch: int | list[int], seed: int = 0) -> None:
        self.make = lambda: DataPlan(length, batch, seed=seed)
        self.plans = [self.make() for _ in range(size)]
        self.trained: list[int] = []
        self.commit()

    def step(self) -> None:
        shares = [plan.take(rank, len(self.plans)) for rank, plan in enumerate(self.plans)]
        assert len({share.total for share in shares}) == 1
        assert sum(len(share) for share in shares) == shares[0].total > 0
        if shares[0].total:
            assert sum(share.weight for share in shares) == pytest.approx(len(shares))
        for share in shares:
            self.trained += share.indices

    def commit(self) -> None:
        self.committed = list(self.trained), self.plans[0].state_dict()

    def change(self, size: int, batch: int | list[int], restore: bool) -> None:
        trained, state = self.committed
        if restore:
            self.trained = list(trained)
        else:
            state = self.plans[0].state_dict()
        self.plans = [self.make() for _ in range(size)]
        for plan in self.plans:
            plan.load_state_dict(state)
            plan.batch_size = batch


sizes = st.integers(1, 8)


@st.composite
def batches(draw: st.DrawFn, size: int) -> int | list[int]:
    one = st.integers(1, 5)
    return draw(one | st.lists(one, min_size=size, max_size=size))


@given(st.data(), st.integers(0, 150), st.integers(0, 3))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_each_position_is_in_the_committed_model_once(
    data: st.DataObject, length: int, seed: int
) -> None:
    size = data.draw(sizes)
    ranks = Ranks(length, size, data.draw(batches(size)), seed)
    changes = 0
    while ranks.plans[0].position < length:
        what = data.draw(st.sampled_from(["step", "step", "commit", "restore", "resize"]))
        if what == "step" or changes > 12:
            ranks.step()
        elif what == "commit":
            ranks.commit()
        else:
            changes += 1
            size = data.draw(sizes)
            ranks.change(size, data.draw(batches(size)), restore=what == "restore")
    assert sorted(ranks.trained) == list(range(length))


def test_epochs_have_orders_of_their_own() -> None:
    plan = DataPlan(50, 50)
    first = plan.take(0, 1).indices
    plan.next_epoch()
    second = plan.take(0, 1).indices
    assert first != second
    assert sorted(first) == sorted(second)
    assert DataPlan(50, 50).take(0, 1).indices == first


def test_the_weighted_mean_is_that_over_samples() -> None:
    values = [random.Random(3).random() for _ in range(11)]
    shares = [DataPlan(11, [5, 2, 9], shuffle=False).take(rank, 3) for rank in range(3)]
    means = [
        share.weight * sum(values[i] for i in share) / len(share) if len(share) else 0.0
        for share in shares
    ]
    assert sum(means) / 3 == pytest.approx(sum(values) / 11)


def test_arguments_of_a_plan() -> None:
    with pytest.raises(ValueError, match="length=-1: the number of samples"):
        DataPlan(-1, 2)
    with pytest.raises(ValueError, match="batch_size=0"):
        DataPlan(3, 0)
    with pytest.raises(ValueError, match=r"batch_size=\[2, 0\]"):
        DataPlan(3, [2, 0])
    with pytest.raises(ValueError, match="batch sizes for 2 ranks, but there are 3"):
        DataPlan(3, [2, 1]).take(0, 3)


@given(st.integers(0, 1000), st.lists(st.integers(1, 50), min_size=1, max_size=9))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_proportions(total: int, weights: list[int]) -> None:
    counts = in_proportion(total, weights)
    assert sum(counts) == total
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count - total * weight / sum(weights)) < 1


def sampler_of(length: int, rank: int, size: int, state: dict[str, int]) -> ElasticSampler:
    sampler = ElasticSampler(range(length), seed=5)
    sampler.rank, sampler.num_replicas = rank, size
    sampler.load_state_dict(state)
    return sampler


@given(st.integers(0, 60), st.integers(1, 6), st.lists(st.integers(1, 6), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_a_sampler_loses_no_sample(length: int, batch: int, sizes: list[int]) -> None:
    state = {"epoch": 2, "processed_num": 0}
    seen: list[int] = []
    for turn, size in enumerate(sizes):
        samplers = [sampler_of(length, rank, size, state) for rank in range(size)]
        assert len({len(one) for one in samplers}) == 1
        dealt = [list(one) for one in samplers]
        steps = -(-len(samplers[0]) // batch)
        last = turn == len(sizes) - 1
        for step in range(steps if last else steps // 2):
            for rank, sampler in enumerate(samplers):
                taken = dealt[rank][step * batch : (step + 1) * batch]
                seen += taken
                sampler.record_batch(step, batch if step % 2 else len(taken))
        state = samplers[0].state_dict()
        assert all(one.state_dict() == state for one in samplers)
    assert set(seen) == set(range(length))
    assert state == {"epoch": 2, "processed_num": length}
    assert len(seen) - length < max(sizes[-1], 1)  # repeated to pad the last ranks


def test_a_sampler_begins_its_next_epoch() -> None:
    sampler = sampler_of(10, 1, 4, {"epoch": 0, "processed_num": 9})
    assert (sampler.num_samples, sampler.total_size, len(sampler.remaining_indices)) == (1, 4, 1)
    sampler.set_epoch(1)
    assert sampler.state_dict() == {"epoch": 1, "processed_num": 0}
    assert (sampler.num_samples, sampler.total_size) == (3, 12)
    order = list(range(10))
    random.Random(5 + 1).shuffle(order)
    assert sampler.remaining_indices == order


def test_a_sampler_with_nothing_left_is_empty() -> None:
    sampler = sampler_of(10, 1, 4, {"epoch": 0, "processed_num": 10})
    assert list(sampler) == []
    assert len(sampler) == 0
