"""Pipeline schedules, simulated without ranks, compared with their papers' claims."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")
from horoscale.torch.parallel.pipeline.schedule import (
    NAMES,
    Action,
    Operation,
    Schedule,
    make_schedule,
)
from horoscale.torch.parallel.pipeline.simulate import (
    ScheduleError,
    check,
    peak_activations,
    simulate,
)

FORWARD, INPUT, WEIGHT = 1.0, 1.25, 0.75
DURATIONS = {
    Action.FORWARD: FORWARD,
    Action.BACKWARD: INPUT + WEIGHT,
    Action.INPUT: INPUT,
    Action.WEIGHT: WEIGHT,
}
BOTH = FORWARD + INPUT + WEIGHT

ranks_of_one = st.integers(1, 9)
microbatches_of_one = st.integers(1, 20)
chunks_of_one = st.integers(1, 4)


def makespan(schedule: Schedule, stages: int) -> float:
    return simulate(schedule, stages, lambda operation: DURATIONS[operation.action]).makespan


@given(st.sampled_from(NAMES), ranks_of_one, microbatches_of_one, chunks_of_one)
def test_every_schedule_ends(name: str, ranks: int, microbatches: int, chunks: int) -> None:
    chunks = chunks if name == "interleaved" else 1
    schedule = make_schedule(name, ranks, microbatches, chunks)
    check(schedule, ranks * chunks, microbatches)
    forward = tuple(
        tuple(one for one in program if one.action is Action.FORWARD) for program in schedule
    )
    simulate(forward, ranks * chunks, lambda _: 1.0)  # like an evaluation


@given(st.sampled_from(["gpipe", "1f1b"]), ranks_of_one, microbatches_of_one)
def test_makespan_of_one_stage_a_rank(name: str, ranks: int, microbatches: int) -> None:
    schedule = make_schedule(name, ranks, microbatches)
    assert makespan(schedule, ranks) == (microbatches + ranks - 1) * BOTH
    bubbles = simulate(schedule, ranks, lambda _: 1.0).bubbles
    assert bubbles == pytest.approx([(ranks - 1) / (microbatches + ranks - 1)] * ranks)


@given(ranks_of_one, st.integers(1, 4), chunks_of_one)
def test_makespan_of_interleaved_stages(ranks: int, rounds: int, chunks: int) -> None:
    schedule = make_schedule("interleaved", ranks, rounds * ranks, chunks)
    assert makespan(schedule, ranks * chunks) == (rounds * ranks * chunks + ranks - 1) * BOTH


@given(ranks_of_one, microbatches_of_one, chunks_of_one)
def test_interleaved_stages_take_no_longer_than_whole_rounds(
    ranks: int, microbatches: int, chunks: int
) -> None:
    rounds = -(-microbatches // ranks)
    schedule = make_schedule("interleaved", ranks, microbatches, chunks)
    assert makespan(schedule, ranks * chunks) <= (rounds * ranks * chunks + ranks - 1) * BOTH


@given(ranks_of_one, microbatches_of_one)
def test_makespan_of_zero_bubble(ranks: int, microbatches: int) -> None:
    schedule = make_schedule("zb-h1", ranks, microbatches)
    with_equal_parts = simulate(schedule, ranks, lambda _: 1.0).makespan
    if microbatches >= ranks:
        assert with_equal_parts == 3 * microbatches + ranks - 1  # a third of 1F1B's bubble
    else:
        assert with_equal_parts == 2 * (microbatches + ranks) - 1
    assert makespan(schedule, ranks) <= (microbatches + ranks - 1) * BOTH


@given(ranks_of_one, microbatches_of_one, chunks_of_one)
def test_activations_in_flight(ranks: int, microbatches: int, chunks: int) -> None:
    for rank in range(ranks):

        def peak(name: str, stages: int = 1, rank: int = rank) -> int:
            return peak_activations(make_schedule(name, ranks, microbatches, stages)[rank])

        assert peak("gpipe") == microbatches
        assert peak("1f1b") == min(ranks - rank, microbatches)
        assert peak("zb-h1") <= min(ranks, microbatches)
        ahead = 2 * (ranks - rank - 1) + (chunks - 1) * ranks if chunks > 1 else ranks - rank - 1
        most = min(ahead + 1, microbatches * chunks)
        if microbatches % ranks == 0:
            assert peak("interleaved", chunks) == most
        else:
            assert peak("interleaved", chunks) <= most


def test_latency_lengthens_the_ends_only() -> None:
    """A message is hidden if another microbatch can be computed meanwhile."""
    for ranks, microbatches in [(2, 8), (4, 8)]:
        schedule = make_schedule("gpipe", ranks, microbatches)
        result = simulate(schedule, ranks, lambda _: 1.0, latency=0.25)
        fill = 2 * (ranks - 1)
        assert result.makespan == 2 * microbatches + fill * 1.25


def test_a_deadlock_is_found_and_named() -> None:
    first, last = (list(program) for program in make_schedule("1f1b", 2, 2))
    first[1], first[2] = first[2], first[1]  # microbatch 1 enters only after 0 has come back
    last[1], last[2] = last[2], last[1]  # 0 goes back only after 1 has come
    with pytest.raises(ScheduleError, match=r"rank 0 at B0\.0, rank 1 at F1\.1"):
        simulate((tuple(first), tuple(last)), 2, lambda _: 1.0)


def test_what_is_missing_or_strange_is_named() -> None:
    schedule = make_schedule("gpipe", 2, 3)
    with pytest.raises(ScheduleError, match=r"rank 1 has BACKWARD of stage 1 .*\[0, 1\]"):
        check((schedule[0], schedule[1][:-1]), 2, 3)
    strange = Operation(Action.FORWARD, 1, 0)
    with pytest.raises(ScheduleError, match=r"rank 0 .*not its own: \['F1\.0'\]"):
        check(((strange, *schedule[0]), schedule[1]), 2, 3)


def test_arguments() -> None:
    with pytest.raises(ValueError, match=r"schedule='2f2b' is none of 'gpipe', '1f1b'"):
        make_schedule("2f2b", 2, 4)
    with pytest.raises(ValueError, match=r'6 stages on 2 ranks need schedule="interleaved"'):
        make_schedule("1f1b", 2, 4, 3)
    with pytest.raises(ValueError, match="microbatches of at least 1, not 0"):
        make_schedule("gpipe", 2, 0)
