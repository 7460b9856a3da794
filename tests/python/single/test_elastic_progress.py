"""How a launcher interprets its ranks' reports: which ranks hang, and how they are shown."""

from __future__ import annotations

import gc
import weakref
from threading import Semaphore
from typing import Any

import pytest

import horoscale.common as hvd
from horoscale.common import activity
from horoscale.common.activity import Activity, ranks_text
from horoscale.driver.progress import Progress, findings
from horoscale.runner.status import as_text


def a_set(operations: int = 9, pending: str = "", seconds: float = 0.0, **more: Any) -> Any:
    return {
        "set": 0,
        "ranks": "0-2",
        "operations": operations,
        "last_operation": "gradient.1",
        "pending": int(bool(pending)),
        "pending_operation": pending,
        "pending_seconds": seconds,
        **more,
    }


def reported(at: float, computing: float = 1.0, *sets: Any, **counters: int) -> Progress:
    """Progress of a rank that has made one report."""
    progress = Progress(0.0)
    progress.take({"computing_seconds": computing, "sets": list(sets), **counters}, at)
    return progress


def over_time(share: float, until: int, step: int = 1) -> Progress:
    """Progress of a rank that computes for part of each second, and makes steps until a time."""
    progress = Progress(0.0)
    for second in range(21):
        values = {"computing_seconds": share * second, "step": min(second, until) * step}
        progress.take(values, float(second))
    return progress


def test_ranks_that_advance_alike() -> None:
    assert findings({0: over_time(0.6, 20), 1: over_time(0.7, 20)}, 20.5) == []
    assert findings({}, 3.0) == []


def test_the_slow_rank_is_named() -> None:
    ranks = {0: over_time(0.5, 20), 1: over_time(0.98, 20), 2: over_time(0.52, 20)}
    (found,) = findings(ranks, 20.5)
    assert (found["what"], found["ranks"]) == ("straggler", [1])
    assert "rank 1 computes 1.9 times as long as the others (98% of its time)" in found["text"]
    # With two ranks, each is compared with the other.
    assert [one["ranks"] for one in findings({0: ranks[0], 1: ranks[1]}, 20.5)] == [[1]]
    assert findings({1: ranks[1]}, 20.5) == []


def test_a_rank_that_says_nothing() -> None:
    (found,) = findings({0: reported(20.0), 1: reported(14.0)}, 20.5)
    assert (found["what"], found["ranks"]) == ("silent", [1])
    assert "rank 1 has said nothing for 6 s" in found["text"]


def test_a_set_that_waits_for_a_rank() -> None:
    ranks = {
        0: reported(30.0, 1.0, a_set(9, "loss", 12.0)),
        1: reported(30.0, 9.0, a_set(9)),
        2: reported(30.0, 1.0, a_set(9, "loss", 13.5)),
    }
    (found,) = findings(ranks, 30.5)
    assert (found["what"], found["ranks"], found["waiting"]) == ("waiting", [1], [0, 2])
    assert 'process set 0 of ranks 0-2: "loss" has been pending for 14 s' in found["text"]
    assert found["text"].endswith("on ranks 0,2, and not been called by rank 1")
    assert findings(ranks | {2: ranks[0]}, 27.0) == []  # not long enough yet


def test_a_rank_that_stops_while_others_go_on() -> None:
    (found,) = findings({0: over_time(0.5, 20), 1: over_time(0.5, 4)}, 20.5)
    assert (found["what"], found["ranks"]) == ("stalled", [1])
    assert "rank 1 has not advanced for 16 s, while others have" in found["text"]
    # All of them may be in an evaluation.
    assert findings({0: over_time(0.5, 4), 1: over_time(0.5, 4)}, 20.5) == []


def test_reports_that_are_none() -> None:
    progress = Progress(0.0)
    progress.take({"step": "x", "computing_seconds": "1", "sets": 3}, 1.0)
    progress.take({"computing_seconds": float("nan"), "sets": [1, {}, a_set(pending=7)]}, 2.0)
    told = progress.describe(2.5)
    assert told["progress"] == {}
    assert told["computing_seconds"] == 0.0
    assert [one["pending_operation"] for one in told["sets"]] == ["", "7"]
    assert told["reported_seconds_ago"] == 0.5


def test_a_table_without_colours() -> None:
    processes = [
        {"rank": None, "host": "b", "slot": 0, "part": "standby", **Progress(0.0).describe(1.0)},
        {
            "rank": 0,
            "host": "a\x1b[31m",
            "slot": 1,
            "part": "member",
            **reported(1.0, 1.0, a_set(9, "loss\n", 12.0), step=7, commit=3).describe(2.0),
        },
    ]
    status = {
        "view": 2,
        "size": 1,
        "resets": 1,
        "processes": processes,
        "findings": [{"what": "silent", "ranks": [0], "text": "rank 0 \x1b]0;x has"}],
    }
    first, headings, *lines = as_text(status).splitlines()
    assert first == "view 2: 1 ranks, 1 changes so far"
    assert headings.split()[:4] == ["rank", "host", "slot", "state"]
    expected = "0 a 1 member commit 3, step 7 loss\\n in set 0, 12 s 1 s ago"
    assert " ".join(lines[0].split()) == expected
    assert lines[1].split() == ["b", "0", "standby"]
    assert lines[2] == "! rank 0 \\x1b]0;x has"


def test_ranks_in_few_words() -> None:
    assert ranks_text([3, 0, 1, 2, 8]) == "0-3, 8"
    assert ranks_text([]) == ""
    assert len(ranks_text(range(0, 1000, 2))) == 100


def test_the_job_that_was_reported_on_is_let_go() -> None:
    """Its shared memory and descriptors, after it has ended."""
    hvd.init()
    activity = Activity()
    assert activity.read()["waiting_seconds"] >= 0.0
    job = weakref.ref(hvd.current_runtime())
    hvd.shutdown()
    gc.collect()
    assert job() is None
    assert activity.read() == {}


def test_a_report_that_fails_is_said_once_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For example by a property of the user's state."""
    monkeypatch.setattr(activity, "_INTERVAL_S", 0.0)
    calls = Semaphore(0)

    def report() -> None:
        calls.release()
        raise RuntimeError("a property of the user's")

    reporter = activity.Reporter(report)
    try:
        for _ in range(3):
            assert calls.acquire(timeout=20)
    finally:
        reporter.end()
    (said,) = caplog.messages
    assert "RuntimeError: a property of the user's" in said
