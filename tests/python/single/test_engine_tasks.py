"""Shared by engines that start ranks as tasks: rank assignment, and results."""

from __future__ import annotations

import pickle

import pytest

from horoscale.engines.tasks import perform_rank, place_tasks, values, variables
from horoscale.runner.outcome import Outcome, RankError
from horoscale.runner.task import Task


def test_ranks_of_a_node_are_consecutive_however_its_tasks_come() -> None:
    places = place_tasks(["b", "a", "b", "c"])
    assert [place.rank for place in places] == [0, 2, 1, 3]
    assert [(place.hostname, place.local_rank, place.local_size) for place in places] == [
        ("b", 0, 2),
        ("a", 0, 1),
        ("b", 1, 2),
        ("c", 0, 1),
    ]
    assert [(place.cross_rank, place.cross_size) for place in places] == [
        (0, 3),
        (1, 3),
        (0, 1),
        (2, 3),
    ]


def test_a_task_is_told_who_it_is_and_how_to_meet_the_others() -> None:
    told = variables(place_tasks(["n", "n"])[1], "10.0.0.1:9", "s" * 32)
    assert told["HOROSCALE_RANK"] == told["HOROVOD_RANK"] == "1"
    assert told["HOROSCALE_HOSTNAME"] == "n"
    assert told["HOROSCALE_RENDEZVOUS"] == "10.0.0.1:9"
    assert told["HOROSCALE_RENDEZVOUS_SERVED"] == "1"


def outcome_of(function: object) -> Outcome:
    loaded = pickle.loads(perform_rank(Task(function, (), {}).pickled()))
    assert isinstance(loaded, Outcome)
    return loaded


def test_the_first_exception_that_is_no_consequence_is_raised_with_its_rank() -> None:
    class RankFailedError(RuntimeError):
        pass

    def lost() -> None:
        raise RankFailedError("rank 2 left the job")

    def wrong() -> None:
        raise KeyError("no such column")

    with pytest.raises(KeyError, match="no such column") as caught:
        values({0: outcome_of(lost), 2: outcome_of(wrong)}, 3, "engine.run")
    assert isinstance(caught.value.__cause__, RankError)
    assert caught.value.__cause__.rank == 2
    assert "in wrong" in caught.value.__cause__.traceback


def test_ranks_without_a_result_are_named() -> None:
    with pytest.raises(RuntimeError, match=r"engine.run: ranks that ended without a result: 0, 2"):
        values({1: outcome_of(lambda: 5)}, 3, "engine.run")
    assert values({0: outcome_of(lambda: 5)}, 1, "engine.run") == [5]
