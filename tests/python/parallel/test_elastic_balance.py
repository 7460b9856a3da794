"""Ranks with different batch sizes: their gradients, and the distribution of samples."""

from __future__ import annotations

import pytest
import torch

import horoscale.torch as hvd


def make_model() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = torch.nn.Linear(12, 700), torch.nn.Tanh(), torch.nn.Linear(700, 3)
    return torch.nn.Sequential(*layers).double()


SAMPLES = torch.randn(70, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
TARGETS = torch.randn(70, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def mean_loss(model: torch.nn.Module, indices: list[int]) -> torch.Tensor:
    return torch.nn.functional.mse_loss(model(SAMPLES[indices]), TARGETS[indices])


def gradients_of(model: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters()]


def plan_of_unequal_ranks() -> hvd.elastic.DataPlan:
    # The last step has fewer samples than ranks, so some ranks have none.
    sizes = [2 + 5 * rank for rank in range(hvd.size())]
    return hvd.elastic.DataPlan(2 * sum(sizes) + 1, sizes, seed=7)


@pytest.mark.parametrize("options", [{}, {"gradients_ready": "backward"}, {"overlap_step": True}])
def test_gradients_are_those_of_one_process(options: dict[str, object]) -> None:
    if options and hvd.size() != 2:
        pytest.skip("the same with more ranks")
    model, alone = make_model(), make_model()
    plain = torch.optim.SGD(alone.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), **options
    )
    plan, whole = plan_of_unequal_ranks(), plan_of_unequal_ranks()
    steps = 0
    for share in plan:
        indices = []
        position = whole.position
        for rank in range(hvd.size()):
            whole.position = position
            indices += whole.take(rank, hvd.size()).indices
        optimizer.zero_grad()
        optimizer.set_local_scale(share.weight)
        loss = mean_loss(model, share.indices)
        assert loss.isnan().item() == (not share.indices)
        loss.backward()
        plain.zero_grad()
        mean_loss(alone, indices).backward()
        if "overlap_step" not in options:
            optimizer.synchronize()
            for own, expected in zip(gradients_of(model), gradients_of(alone), strict=True):
                assert (own - expected).abs().max() <= 1e-12 * max(1.0, expected.abs().max())
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        plain.step()
        steps += 1
    assert steps == 3
    for own, expected in zip(model.parameters(), alone.parameters(), strict=True):
        assert (own - expected).abs().max() <= 1e-12


def test_sparse_gradients_are_scaled() -> None:
    embedding = torch.nn.Embedding(5, 2, sparse=True, dtype=torch.float64)
    torch.nn.init.zeros_(embedding.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(embedding.parameters(), lr=1.0))
    optimizer.set_local_scale(hvd.rank() + 1.0)
    embedding(torch.tensor([1, 3])).sum().backward()
    optimizer.step()
    expected = -sum(range(1, hvd.size() + 1)) / hvd.size()
    assert embedding.weight[1].tolist() == pytest.approx([expected] * 2)
    assert embedding.weight[0].tolist() == [0.0, 0.0]


def test_a_scale_is_set_between_steps() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    with pytest.raises(ValueError, match="nan"):
        optimizer.set_local_scale(float("nan"))
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(AssertionError, match="between backward"):
        optimizer.set_local_scale(2.0)
    optimizer.step()
    optimizer.set_local_scale(1.0)


def test_sizes_follow_the_speeds_at_commits() -> None:
    if hvd.size() == 1:
        pytest.skip("one rank has nothing to balance")
    balance = hvd.elastic.balance(12, every=3)
    plan = hvd.elastic.DataPlan(10_000, balance)
    state = hvd.elastic.ObjectState(plan=plan)
    dealt = []
    for step, share in enumerate(plan):
        dealt.append(len(share))
        assert share.total == 12 * hvd.size()
        slow = hvd.rank() == hvd.size() - 1
        balance.measured(len(share) * (2.0 if slow else 1.0))
        if step == 7:
            break
        if step != 4:
            state.commit()
    mine = hvd.allgather_object(dealt)
    assert all(one[:3] == [12] * 3 for one in mine)
    assert all(one[3] == one[4] == one[5] for one in mine)  # changed at the third commit
    last = [one[-1] for one in mine]
    assert sum(last) == 12 * hvd.size()
    assert max(last[:-1]) >= 2 * last[-1] - 1
    kept = plan.state_dict()["balance"]
    assert kept["sizes"] == last
    assert hvd.allgather_object(kept) == [kept] * hvd.size()
    state.restore()
    assert plan.state_dict()["balance"]["sizes"] == last
