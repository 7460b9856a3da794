"""How models are split into stages, and the cost model's predictions for a step."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import astuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.planning_models import MACHINE

import horoscale.torch.parallel as par
from horoscale.torch.parallel.planning.cost import cost, group
from horoscale.torch.parallel.planning.dry_run import Unit
from horoscale.torch.parallel.planning.machine import (
    Averages,
    Link,
    Machine,
    Measured,
    Overheads,
    Shape,
    ring_seconds,
)
from horoscale.torch.parallel.planning.partition import cut
from horoscale.torch.parallel.planning.profile import Timing
from horoscale.torch.parallel.planning.recomputation import segments
from horoscale.torch.parallel.planning.stand_ins import Collective


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_cut_is_better(data: st.DataObject) -> None:
    times = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=7))
    stages = data.draw(st.integers(1, len(times)))
    speeds = data.draw(st.lists(st.sampled_from([1, 2, 5]), min_size=stages, max_size=stages))
    most = data.draw(st.integers(1, len(times)))  # maximum number of layers per stage

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
    """Stages 1 and 2: as much as an allreduce; stage 3: 1.5 times that; half of it on a host."""
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
    """With one core for both stages nothing overlaps: beyond taking turns there is no bubble."""
    strategy = par.Strategy(pp=2, microbatches=4)
    machine = Machine(**vars(MACHINE) | {"slots": 1, "message": Link(0, 1e30)})
    found = cost(strategy, units(8), [Timing(1e-3, 2e-3, 0)] * 8, machine, 2)
    assert found is not None
    assert found.step == pytest.approx(4 * 8 * 3e-3)
    assert found.parts.bubble == pytest.approx(0, abs=1e-9)


def test_what_is_sent_between_hosts_needs_no_core() -> None:
    shared = Machine(**vars(MACHINE) | {"slots": 0.5})  # two hosts on one core of a machine
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
    assert group(strategy, ["tp"], 4) == Shape(2, 1, 1)
    assert group(strategy, ["dp"], 4) == Shape(2, 2, 2)


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
    # No rank can be faster than its own work, and no host faster than that of its ranks.
    work = microbatches * sum(3 * one + recompute * one for one in times)
    assert found.step >= work / pp * (1 - 1e-9)
