"""Which of the runtime's metrics are logged, when, and that the documentation lists them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import horoscale.numpy as hvd
from horoscale.trackers import RuntimeScalars
from horoscale.trackers.runtime_scalars import rates, read

PAGE = Path(__file__).parents[3] / "docs" / "how_to" / "track_training.md"
OF_STEPS = {"step_seconds", "step_exposed_fraction", "step_waiting_fraction"}


@pytest.fixture
def job() -> Iterator[None]:
    hvd.init(process_sets="dynamic")
    yield
    hvd.shutdown()


def metrics(operations: int, sent: int, steps: dict[str, float]) -> dict[str, Any]:
    of_set = {"operations": operations, "bytes": 8 * operations, "cache_misses": 2}
    of_set |= {"negotiate_seconds": 0.5, "execute_seconds": 0.25, "one_hop": 9}
    return {
        "process_sets": {"0": {}, "3": of_set},
        "steps": steps,
        "waiting_seconds": 0.75,
        "data_bytes_sent": 100 + sent,
        "network_bytes_sent": sent,
        "doorbells_rung": 7,
    }


def steps(count: int, seconds: float, exposed: float, waiting: float) -> dict[str, float]:
    return {
        "count": count,
        "seconds": seconds,
        "exposed_seconds": exposed,
        "waiting_seconds": waiting,
    }


def test_counters_are_those_of_the_rank_and_of_the_set() -> None:
    reading = read(metrics(10, 40, steps(1, 2.0, 0.5, 0.25)), 3, 1.0)
    assert reading.counters == {
        "operations": 10,
        "bytes": 80,
        "cache_misses": 2,
        "negotiate_seconds": 0.5,
        "execute_seconds": 0.25,
        "waiting_seconds": 0.75,
        "data_bytes_sent": 140,
        "network_bytes_sent": 40,
    }


def test_rates_are_about_the_interval() -> None:
    before = read(metrics(10, 40, steps(1, 2.0, 0.5, 0.25)), 3, 1.0)
    after = read(metrics(30, 140, steps(5, 4.0, 1.5, 0.5)), 3, 5.0)
    assert rates(before, after) == {
        "operations_per_second": 5,
        "bytes_per_second": 40,
        "network_bytes_sent_per_second": 25,
        "step_seconds": 0.5,
        "step_exposed_fraction": 0.5,
        "step_waiting_fraction": 0.125,
    }


def test_without_a_completed_step_there_is_no_time_of_steps() -> None:
    one = read(metrics(10, 40, steps(1, 2.0, 0.5, 0.25)), 3, 1.0)
    found = rates(one, one)  # not even time has passed
    assert found.keys().isdisjoint(OF_STEPS)
    assert set(found.values()) == {0.0}


@pytest.mark.parametrize(
    ("every", "first", "read_at"),
    [(1, 0, [0, 1, 2, 3, 4, 5, 6, 7, 8]), (3, 0, [0, 3, 6]), (3, 1, [1, 4, 7]), (50, 0, [0])],
)
@pytest.mark.usefixtures("job")
def test_readings_are_so_many_steps_apart(every: int, first: int, read_at: list[int]) -> None:
    scalars = RuntimeScalars(every)
    assert [step for step in range(first, 9) if scalars.read(step)] == read_at


@pytest.mark.usefixtures("job")
def test_steps_need_not_be_multiples() -> None:
    scalars = RuntimeScalars(50)
    assert [step for step in range(0, 200, 20) if scalars.read(step)] == [0, 60, 120, 180]


@pytest.mark.usefixtures("job")
def test_a_lower_step_starts_again() -> None:
    scalars = RuntimeScalars(50)
    assert scalars.read(1000)
    assert scalars.read(10)
    assert not scalars.read(59)
    assert scalars.read(60)


def test_a_new_job_starts_again_and_no_job_has_nothing() -> None:
    scalars = RuntimeScalars(50)
    assert scalars.read(0) == {}
    for step in (1, 2):
        hvd.init()
        found = scalars.read(step)
        assert "horoscale/operations" in found
        assert "horoscale/operations_per_second" not in found
        assert scalars.read(step) == {}
        hvd.shutdown()
        assert scalars.read(step + 100) == {}


@pytest.mark.usefixtures("job")
def test_a_set_that_is_not_registered_is_an_error() -> None:
    with pytest.raises(ValueError, match="is not registered"):
        RuntimeScalars(process_set=hvd.ProcessSet([0])).read(0)


def test_every_is_positive() -> None:
    with pytest.raises(ValueError, match="are 0, and must be 1 or more"):
        RuntimeScalars(0)


@pytest.mark.usefixtures("job")
def test_the_page_lists_all_names() -> None:
    listed = re.findall(r"^\| `(horoscale/\w+)` \|", PAGE.read_text(), re.MULTILINE)
    scalars = RuntimeScalars(every=1)
    scalars.read(0)
    for _ in range(3):
        hvd.allreduce(np.ones(4), name="gradient")  # the same name twice completes a step
    assert sorted(listed) == sorted(scalars.read(1))
