"""par.plan()'s estimates for all ways to divide a model, without ranks."""

from __future__ import annotations

import pytest
import torch
from support.planning_models import MACHINE, PLAN, cross_entropy, make_batch, make_model
from torch import nn

import horoscale.torch.parallel as par
from horoscale.torch.parallel.planning.cost import group
from horoscale.torch.parallel.planning.machine import Machine


def test_plans_of_one_process() -> None:
    with torch.device("meta"):  # so that times are those of MACHINE, whatever else runs here
        model = make_model("mlp")
    batch = make_batch("mlp")
    planned = par.plan(
        model,
        batch,
        loss=cross_entropy,
        tensor_parallel=PLAN,
        ranks=4,
        hosts=2,
        bandwidth=1e6,
        memory="1MiB",
        microbatches=[1, 4],
        machine=MACHINE,
    )
    steps = [one.step for one in planned.costs]
    assert steps == sorted(steps)
    assert all(one.strategy.ranks == 4 for one in planned.costs)
    assert all(one.most_memory <= 1 << 20 for one in planned.costs)
    assert {one.strategy.tp for one in planned.costs} == {1, 2, 4}
    # Over a 1 MB/s link a stage's output is cheaper than the sums of layers or gradients.
    best = planned.best.strategy
    across = group(best, ["pp"], ranks_per_host=2)
    assert across.hosts == 2
    assert all(group(best, [one], ranks_per_host=2).hosts == 1 for one in ("tp", "dp"))
    text = str(planned)
    assert "strategy" in text
    assert "more are slower" in text


def test_a_plan_says_why_ways_do_not_fit() -> None:
    model, batch = make_model("mlp"), make_batch("mlp")
    options = {"loss": cross_entropy, "machine": MACHINE, "tensor_parallel": PLAN}
    planned = par.plan(model, batch, ranks=2, memory=1000, **options)
    assert not planned.costs
    assert all("memory: needs" in one.reason for one in planned.rejected)
    with pytest.raises(ValueError, match="no way fits"):
        _ = planned.best
    planned = par.plan(model, batch, ranks=32, microbatches=[1], **options)
    of_tp = {one.reason for one in planned.rejected if one.strategy.tp == 32}
    assert len(of_tp) == 1
    assert "can't be divided" in of_tp.pop()
    with pytest.raises(ValueError, match="bandwidth="):
        par.plan(
            model, batch, ranks=2, hosts=2, loss=cross_entropy,
            machine=Machine(**vars(MACHINE) | {"collective_between": None}),
        )  # fmt: skip
    with pytest.raises(ValueError, match="speeds="):
        par.plan(model, batch, ranks=2, speeds=[1.0], **options)
    with pytest.raises(ValueError, match="no more"):
        par.plan(model, batch, ranks=2, axes=["no more"], **options)
    with pytest.raises(ValueError, match="no way divides 32 rows and 4 units among 7 ranks"):
        par.plan(model, batch, ranks=7, axes=["dp"], **options)
    with pytest.raises(ValueError, match=r"microbatches=\[0\]: at least 1"):
        par.plan(model, batch, ranks=2, microbatches=[0], **options)


def test_stages_of_slower_ranks_are_smaller() -> None:
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))
        batch = (torch.empty(8, 64), torch.empty(8, dtype=torch.long))
    planned = par.plan(
        model, batch, loss=cross_entropy, machine=MACHINE, ranks=2, speeds=[2.0, 1.0], axes=["pp"]
    )
    assert planned.best.cuts == (0, 4, 6)
