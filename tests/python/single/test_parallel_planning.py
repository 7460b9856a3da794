"""What par.memory() and the cost model say, without ranks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.planning_models import PLAN, TRANSFORMER_PLAN, cross_entropy, make_batch, make_model
from torch import nn

import horoscale.torch.parallel as par
from horoscale.torch.parallel.planning.cost import cost, group
from horoscale.torch.parallel.planning.dry_run import Unit, dry_run, rehearse, units_of
from horoscale.torch.parallel.planning.machine import (
    Averages,
    Link,
    Machine,
    Measured,
    Overheads,
    Shape,
    ring_seconds,
)
from horoscale.torch.parallel.planning.memory import zero_state
from horoscale.torch.parallel.planning.partition import cut
from horoscale.torch.parallel.planning.profile import (
    Timing,
    by_formula,
    interpolate,
    profile,
    windows,
)
from horoscale.torch.parallel.planning.recomputation import recompute_segments, segments
from horoscale.torch.parallel.planning.stand_ins import Collective

MACHINE = Machine(
    flops=1e10,
    memory_bandwidth=1e10,
    slots=8,
    message=Link(1e-5, 1e9),
    collective=Link(1e-5, 1e9),
    message_between=Link(1e-4, 1e8),
    collective_between=Link(1e-4, 1e8),
    overlap=0.5,
)


# ---------------------------------------------------------------- cutting into stages


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_cut_is_better(data: st.DataObject) -> None:
    times = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=7))
    stages = data.draw(st.integers(1, len(times)))
    speeds = data.draw(st.lists(st.sampled_from([1, 2, 5]), min_size=stages, max_size=stages))
    most = data.draw(st.integers(1, len(times)))  # layers that a stage may have

    def of_stage(begin: int, end: int, stage: int) -> float:
        return math.inf if end - begin > most else sum(times[begin:end]) / speeds[stage]

    def of_cuts(cuts: Sequence[int]) -> tuple[float, float]:
        each = [of_stage(a, b, at) for at, (a, b) in enumerate(itertools.pairwise(cuts))]
        return max(each), sum(one * one for one in each)

    every = [
        [0, *inner, len(times)]
        for inner in itertools.combinations(range(1, len(times)), stages - 1)
    ]
    best = min(map(of_cuts, every))
    found = cut(len(times), stages, of_stage)
    if math.isinf(best[0]):
        assert found is None
    else:
        assert found is not None
        assert of_cuts(found)[0] == best[0]


def test_more_stages_than_layers() -> None:
    with pytest.raises(ValueError, match="2 layers can't be cut into 3 stages"):
        cut(2, 3, lambda *_: 1.0)


def test_slower_ranks_get_fewer_layers() -> None:
    assert cut(6, 2, lambda begin, end, stage: (end - begin) / (2.0, 1.0)[stage]) == [0, 4, 6]


# ---------------------------------------------------------------- memory


@contextmanager
def saving(own: set[int], sizes: dict[int, int]) -> Iterator[None]:
    """Counts what autograd saves of real tensors, each storage once."""
    kept = []  # so that no address is used again

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
    """Those of docs/parallel.md: L (12 h² + 13 h), and L ((12 h² + 7 h) / t + 6 h) over tp."""
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
    """Stages of it would compute something else."""
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
    assert many == [list(range(9)), [41]]  # eight of those that are alike tell of all


# ---------------------------------------------------------------- cost


def units(number: int, sent: int = 0) -> list[Unit]:
    collectives = (Collective("allreduce", sent, True), Collective("allreduce", sent, False))
    return [
        Unit(
            name=str(index),
            parameters={index: 1000},
            trained=frozenset([index]),
            optimizer={index: 2000},
            buffers=0,
            saved={-index - 1: 500},
            input=100,
            output=100,
            transient=50,
            update=10,
            sent=collectives if sent else (),
            forward_flops=1000,
            backward_flops=2000,
        )
        for index in range(number)
    ]


ALIKE = [Timing(1e-3, 2e-3, 1e-4)] * 8


def test_one_rank_computes_alone() -> None:
    found = cost(par.Strategy(), units(8), ALIKE, MACHINE, 1)
    assert found is not None
    assert found.step == pytest.approx(8 * 3.1e-3)
    assert (found.parts.communication, found.parts.bubble, found.parts.waiting) == (0, 0, 0)
    assert found.parts.efficiency == 1


def test_a_pipelines_bubble_is_that_of_its_schedule() -> None:
    silent = Machine(1, 1, 8, Link(0, 1e30), Link(0, 1e30), None, None, 0)
    no_update = [Timing(1e-3, 2e-3, 0)] * 8
    for pp, m in itertools.product((2, 4), (4, 8)):
        found = cost(par.Strategy(pp=pp, microbatches=m), units(8), no_update, silent, pp)
        assert found is not None
        assert found.parts.bubble / found.step == pytest.approx((pp - 1) / (m + pp - 1))
        assert found.parts.communication == pytest.approx(0, abs=1e-12)


def test_averaging_is_hidden_as_far_as_it_was_measured() -> None:
    found = cost(par.Strategy(dp=2), units(8), ALIKE, MACHINE, 2)
    assert found is not None
    assert found.parts.communication == pytest.approx(ring_seconds(8000, 2, MACHINE.collective) / 2)


def test_zero_sends_what_its_paper_says() -> None:
    """Stages 1 and 2 as much as an allreduce, stage 3 half as much again; half of it on a host."""
    silent = Machine(**vars(MACHINE) | {"overlap": 0.0})

    def communication(stage: int, ranks_per_host: int) -> float:
        found = cost(par.Strategy(dp=4, stage=stage), units(8), ALIKE, silent, ranks_per_host)
        assert found is not None
        return found.parts.communication

    between = ring_seconds(8000, 2, MACHINE.collective) + ring_seconds(8000, 2, Link(1e-4, 1e8))
    for stage, factor in enumerate((1.0, 1.0, 1.0, 1.5)):
        assert communication(stage, 2) == pytest.approx(factor * between)
    inside = ring_seconds(8000, 4, MACHINE.collective)
    for stage, factor in enumerate((1.0, 0.5, 0.5, 0.5)):
        assert communication(stage, 4) == pytest.approx(factor * inside)


def test_layers_divided_over_hosts_pay_for_the_network() -> None:
    inside, across = (
        cost(par.Strategy(tp=2), units(8, sent=10_000), ALIKE, MACHINE, per_host)
        for per_host in (2, 1)
    )
    assert inside is not None
    assert across is not None
    assert inside.parts.communication == pytest.approx(16 * (1e-5 + 1e4 / 1e9))
    assert across.parts.communication == pytest.approx(16 * (1e-4 + 1e4 / 1e8))


def test_ranks_that_share_cores_take_turns() -> None:
    alone = cost(par.Strategy(dp=4), units(8), ALIKE, MACHINE, 4)
    shared = cost(par.Strategy(dp=4), units(8), ALIKE, Machine(**vars(MACHINE) | {"slots": 2}), 4)
    assert alone is not None
    assert shared is not None
    assert shared.parts.compute == pytest.approx(2 * alone.parts.compute)


def test_a_pipeline_on_few_cores_takes_turns() -> None:
    """With one core for both stages nothing overlaps: there is no bubble beside the turns."""
    strategy = par.Strategy(pp=2, microbatches=4)
    machine = Machine(**vars(MACHINE) | {"slots": 1, "message": Link(0, 1e30)})
    found = cost(strategy, units(8), [Timing(1e-3, 2e-3, 0)] * 8, machine, 2)
    assert found is not None
    assert found.step == pytest.approx(4 * 8 * 3e-3)
    assert found.parts.bubble == pytest.approx(0, abs=1e-9)


def test_what_is_sent_between_hosts_needs_no_core() -> None:
    shared = Machine(**vars(MACHINE) | {"slots": 0.5})  # two hosts on one machine's core
    alone, both = (
        cost(par.Strategy(tp=2), units(8, sent=10_000), ALIKE, machine, 1)
        for machine in (MACHINE, shared)
    )
    assert alone is not None
    assert both is not None
    assert both.parts.compute == pytest.approx(2 * alone.parts.compute)
    assert both.parts.communication == pytest.approx(alone.parts.communication)


def test_measured_groups_count_more_than_the_ring() -> None:
    link = Link.through([(1e3, 1e-5), (1e5, 1e-3)])
    averages = Averages(step=1e-3, gradient=1e-5, bandwidth=1e6, overlap=0.0)
    measured = (Measured(Shape(2, 1, 1), link, averages),)
    machine = Machine(**vars(MACHINE) | {"groups": measured})
    of_dp = cost(par.Strategy(dp=2), units(8), ALIKE, machine, 2)
    assert of_dp is not None
    assert of_dp.parts.communication == pytest.approx(1e-3 + 8e-5 + 8e-3)
    of_tp = cost(par.Strategy(tp=2), units(8, sent=1000), ALIKE, machine, 2)
    assert of_tp is not None
    assert of_tp.parts.communication == pytest.approx(16e-5)
    four = cost(par.Strategy(dp=4), units(8), ALIKE, machine, 4)  # such a group was not measured
    assert four is not None
    assert four.parts.communication == pytest.approx(ring_seconds(8000, 4, MACHINE.collective) / 2)


def test_steps_and_microbatches_cost_something_themselves() -> None:
    beside = Overheads(step=1e-3, microbatch=1e-4, handover=1e-5)
    machine = Machine(**vars(MACHINE) | {"overheads": beside})
    found = cost(par.Strategy(microbatches=4), units(8), ALIKE, machine, 1)
    assert found is not None
    assert found.step == pytest.approx(4 * (8 * 3e-3 + 1e-4) + 8e-4 + 1e-3)


def test_gradients_that_are_there_are_added_to() -> None:
    timings = [Timing(1e-3, 2e-3, 0.0, accumulate=5e-4)] * 8
    found = cost(par.Strategy(microbatches=4), units(8), timings, MACHINE, 1)
    assert found is not None
    assert found.step == pytest.approx(8 * (4 * 3e-3 + 3 * 5e-4))


def test_selective_recomputation_leaves_products_out() -> None:
    def step(how: object) -> float:
        found = cost(par.Strategy(recompute=how), units(8), ALIKE, machine, 1)
        assert found is not None
        return found.step

    machine = Machine(**vars(MACHINE) | {"flops": 1000 / 0.75e-3})  # of a unit's 1e-3 s
    assert step("selective") == pytest.approx(step(False) + 8 * 0.25e-3)
    assert step(True) == step("sqrt") == pytest.approx(step(False) + 8e-3)


def test_segments_are_as_long_as_there_are_many() -> None:
    assert segments(9) == [(0, 3), (3, 6), (6, 9)]
    assert segments(5) == [(0, 3), (3, 5)]
    assert segments(1) == [(0, 1)]


def test_where_groups_are() -> None:
    strategy = par.Strategy(tp=2, dp=4)
    assert group(strategy, ["tp"], 4) == (type(group(strategy, ["tp"], 4)))(2, 1, 1)
    of_dp = group(strategy, ["dp"], 4)
    assert (of_dp.local, of_dp.hosts, of_dp.sharing) == (2, 2, 2)


def test_memory_decides_where_stages_are_cut() -> None:
    strategy = par.Strategy(pp=2, microbatches=4)
    slow_first = [Timing(1.0, 1.0, 0.0), *[Timing(0.1, 0.1, 0.0)] * 7]
    free = cost(strategy, units(8), slow_first, MACHINE, 2)
    assert free is not None
    assert free.cuts == (0, 1, 8)
    most = free.most_memory
    tight = cost(strategy, units(8), slow_first, MACHINE, 2, memory=most - 1)
    assert tight is not None
    assert tight.cuts != free.cuts
    assert tight.most_memory < most
    assert cost(strategy, units(8), slow_first, MACHINE, 2, memory=5000) is None


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.sampled_from(
        [s for s in itertools.product((1, 2, 4), repeat=4) if math.prod(s) in (1, 2, 4, 8)]
    ),
    microbatches=st.sampled_from([1, 2, 3, 8]),
    stage=st.integers(0, 3),
    recompute=st.sampled_from([False, True]),
    slots=st.sampled_from([1.0, 2.0, 8.0]),
    overlap=st.floats(0, 1),
    times=st.lists(st.floats(1e-6, 1e-1), min_size=5, max_size=8),
)
def test_the_parts_add_up_and_none_is_negative(
    sizes: tuple[int, ...],
    microbatches: int,
    stage: int,
    recompute: bool,
    slots: float,
    overlap: float,
    times: list[float],
) -> None:
    tp, cp, pp, dp = sizes
    strategy = par.Strategy(tp, cp, pp, dp, stage, microbatches, recompute)
    machine = Machine(**vars(MACHINE) | {"slots": slots, "overlap": overlap})
    timings = [Timing(one, 2 * one, one / 10) for one in times]
    per_host = min(strategy.ranks, 2)
    found = cost(strategy, units(len(times), 100), timings, machine, per_host)
    assert found is not None
    parts = astuple(found.parts)
    assert min(parts) >= -1e-12
    assert sum(parts) == pytest.approx(found.step)
    assert 0 <= found.parts.efficiency <= 1
    # No rank can be quicker than its own work, nor a host than that of its ranks.
    work = microbatches * sum(3 * one + recompute * one for one in times)
    assert found.step >= work / pp * (1 - 1e-9)


# ---------------------------------------------------------------- plans


def test_plans_of_one_process() -> None:
    model, batch = make_model("mlp"), make_batch("mlp")
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
    # Over a link of 1 MB/s a stage's output is cheaper than the sums of layers or gradients.
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


def test_a_model_without_memory_is_costed_by_its_operations() -> None:
    x, target = make_batch("mlp")
    found = dry_run(rehearse(make_model("mlp")), x, target, cross_entropy, torch.optim.AdamW)
    timings = by_formula(found, 1e6, 1e30)
    assert timings[0].forward == pytest.approx(found[0].forward_flops / 1e6)
