"""What a watched job's ranks report and print, and what is known of it."""

from __future__ import annotations

import json

import pytest
from support.recovering_job import Recovering
from support.watched_job import WatchedJob

from horoscale.watch.events import KEPT, Events, Listener
from horoscale.watch.job import HISTORY, JobWatch
from horoscale.watch.rank import WatchedRank


def of_rank(snapshot: dict, rank: int) -> dict:
    return next(one for one in snapshot["ranks"] if one["rank"] == rank)


def test_ranks_that_report_run_at_the_speed_of_their_steps() -> None:
    job = WatchedJob(4)
    assert {one["state"] for one in job.watch.snapshot()["ranks"]} == {"starting"}
    for _ in range(3):
        job.second(steps=6)
    told = job.watch.snapshot()
    assert told["job"]["state"] == "running"
    assert (told["job"]["size"], told["job"]["steps"]) == (4, 18)
    assert told["job"]["steps_per_second"] == pytest.approx(6, rel=1e-3)
    for one in told["ranks"]:
        step = one["step"]
        parts = ("computing_seconds", "exposed_seconds", "waiting_seconds")
        assert sum(step[part] for part in parts) == pytest.approx(step["seconds"], abs=1e-5)
        assert one["state"] == "running"
        assert one["reduced_bytes_per_second"] == 6 * 220_000_000
    last = told["history"][-1]
    assert last["computing"] + last["exposed"] + last["waiting"] == pytest.approx(1 / 6, abs=1e-4)


def test_a_rank_that_does_not_call_is_late_and_the_others_wait_for_it() -> None:
    job = WatchedJob(4)
    job.second()
    job.stalled = {2}
    for _ in range(3):
        job.second()
    told = job.watch.snapshot()
    assert [one["state"] for one in told["ranks"]] == ["waiting", "waiting", "late", "waiting"]
    (one,) = told["sets"]
    assert (one["waits_for"], one["waits_seconds"]) == ("gradient.layers.0.weight", 3.0)
    assert (one["waiting"], one["missing"]) == ("0-1,3", "2")
    assert told["findings"] == []
    assert told["job"]["state"] == "stalled"
    for _ in range(8):
        job.second()
    (found,) = job.watch.snapshot()["findings"]
    assert found["what"] == "waiting"
    assert "not been called by rank 2" in found["text"]


def test_an_operation_that_was_new_in_a_report_is_not_taken_to_be_pending_ever_since() -> None:
    rank = WatchedRank(0, 0, "node", 0, now=0.0)
    own = {"set": 0, "ranks": "0", "operations": 1, "pending": 1, "pending_operation": "a"}
    rank.take({"sets": [{**own, "pending_seconds": 0.01}]}, 1.0)
    assert rank.waits(3.0) == 0.01
    rank.take({"sets": [{**own, "pending_seconds": 1.5}]}, 3.0)
    assert rank.waits(5.0) == 3.5


def of_set(number: int, operation: str = "", seconds: float = 0.0) -> dict:
    """A rank's report of a process set of ranks 0 to 2."""
    return {
        "set": number,
        "ranks": "0-2",
        "operations": 1,
        "last_operation": "",
        "executing": "",
        "pending": int(bool(operation)),
        "pending_operation": operation,
        "pending_seconds": seconds,
    }


def of_three_ranks(*sets: list[dict]) -> JobWatch:
    """A job in which ranks 0, 1, … have reported these sets."""
    watch = JobWatch("python", elastic=False, clock=lambda: 100.0)
    for rank, own in enumerate(sets):
        watch.started(rank, rank, "node", rank)
        watch.report({str(rank): {"at": 1.0, "operations": 1, "sets": own}}, "node")
    return watch


def test_a_member_that_leaves_an_idle_set_out_of_its_report_is_missing_in_it() -> None:
    waits = [of_set(0), of_set(40, "a", 5.0)]
    idle = [of_set(number) for number in range(8)]
    told = of_three_ranks(waits, waits, idle).snapshot()
    assert (told["sets"][0]["waiting"], told["sets"][0]["missing"]) == ("0-1", "2")
    assert [one["state"] for one in told["ranks"]] == ["waiting", "waiting", "late"]


def test_a_member_with_more_waits_than_a_report_holds_is_not_said_to_be_missing() -> None:
    waits = [of_set(0), of_set(40, "a", 5.0)]
    busy = [of_set(0), *(of_set(number, "b", 6.0) for number in range(1, 8))]
    found = {one["set"]: one for one in of_three_ranks(waits, waits, busy).snapshot()["sets"]}
    assert (found[40]["waiting"], found[40]["missing"]) == ("0-1", "")


def test_members_of_a_list_that_was_cut_are_known_by_their_reports_alone() -> None:
    waits = [of_set(0), {**of_set(40, "a", 5.0), "ranks": "0-2, 7…"}]
    told = of_three_ranks(waits, waits, [of_set(0)]).snapshot()
    assert (told["sets"][0]["waiting"], told["sets"][0]["missing"]) == ("0-1", "")


def test_findings_name_a_member_that_leaves_an_idle_set_out_of_its_report() -> None:
    waits = [of_set(0), of_set(40, "a", 15.0)]
    idle = [of_set(number) for number in range(8)]
    (found,) = of_three_ranks(waits, waits, idle).snapshot()["findings"]
    assert "not been called by rank 2" in found["text"]


def test_a_rank_that_says_nothing_is_silent() -> None:
    job = WatchedJob(2)
    job.second()
    job.now += 6
    assert {one["state"] for one in job.watch.snapshot()["ranks"]} == {"silent"}


def test_links_are_between_hosts_and_inside_them() -> None:
    job = WatchedJob(16)
    for _ in range(2):
        job.second(steps=1)
    links = {(one["from"], one["to"]): one for one in job.watch.snapshot()["links"]}
    across = links["node000", "node001"]["bytes_per_second"]
    assert across == pytest.approx(8 * 220_000_000 // 8, rel=1e-6)
    assert links["node001", "node001"]["bytes_per_second"] == 8 * 220_000_000


def test_the_history_counts_no_bytes_of_a_rank_that_has_ended() -> None:
    job = WatchedJob(16)
    for _ in range(3):
        job.second()
    before = job.watch.snapshot()["history"][-1]["bytes"]
    for rank in range(8):
        job.watch.ended(rank, 0, "ended")
    job.second()
    assert job.watch.snapshot()["history"][-1]["bytes"] == pytest.approx(before / 2)


def test_deltas_leave_what_they_do_not_name() -> None:
    rank = WatchedRank(0, 0, "node", 0, now=0.0)
    whole = {"at": 1.0, "operations": 5, "reduced_bytes": 100, "steps": [1, 1.0, 0.2, 0.1]}
    rank.take(whole, 1.0)
    rank.take({"at": 2.0, "reduced_bytes": 300}, 2.0)
    assert rank.counters["operations"] == 5
    assert rank.rates["reduced_bytes"] == 200
    assert (rank.steps, rank.step.seconds) == (1, 1.0)


def test_what_no_rank_says_changes_nothing() -> None:
    watch = JobWatch("python", elastic=False)
    watch.started(0, 0, "node", 0)
    nonsense: list[object] = [
        *({}, {"x": {}}, {"0": 5}, {"7": {"at": 1}}, {"0": {"at": "late", "steps": [1]}}),
        {"0": {"at": -1, "operations": [], "links": {"x": 1, "3": -5}, "sets": [1, {"set": {}}]}},
        {"0": {"at": 1e300, "steps": [1e30, "a", None, True], "notes": [["mismatch"], 5]}},
        {"1" * 5000: {}, "0": {"links": {"1" * 5000: 1}, **{f"key {i}": i for i in range(99)}}},
        {"0": {"at": 10**400, "operations": float("inf"), "view": -(10**400)}},
        {
            "0": {
                "operations": float("nan"),
                "notes": [["rm -rf", "x"], "x"],
                "links": {"1" * 99: 1},
            }
        },
    ]
    for reports in nonsense:
        watch.report(reports, "node")
    watch.report({"0": {"steps": [5, 1.0, 0.0, 0.0]}}, "another node")
    told = watch.snapshot()
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert (told["ranks"][0]["steps"], told["events"]) == (0, [])
    assert len(watch._ranks[0]._values) < 20


def test_times_that_cannot_be_make_no_rates() -> None:
    watch = JobWatch("python", elastic=False)
    watch.started(0, 0, "node", 0)
    told = {"at": 5e-324, "operations": 1, "reduced_bytes": 1e17, "steps": [1, 5e-324, 0, 0]}
    watch.report({"0": told}, "node")
    (rank,) = watch.snapshot()["ranks"]
    assert (rank["steps_per_second"], rank["reduced_bytes_per_second"]) == (0, 0)


def test_arguments_of_the_command_are_not_shown() -> None:
    from horoscale.runner.watching import _shown

    assert (
        _shown(["/usr/bin/python3", "/home/me/train.py", "--key", "secret"]) == "python3 train.py"
    )
    assert _shown(["python", "-c", "secret"]) == "python"
    assert _shown(["./train", "secret"]) == "train"


# ---------------------------------------------------------------- events


def test_lines_of_the_runtime_become_events() -> None:
    lines = (
        b'[rank 0] warning: allreduce "loss" on process set 0 has waited for 9 s for rank 2\n'
        b"2026-01-01 10:00:00.000001 [rank 0] autotune: process set 0 was tuned in 238 steps\n"
        b"horoscale._core.errors.MismatchError: allreduce a: shapes differ\n"
        b"epoch 1: Error: none of ours\n"
        b"[rank 0] state: rank 0 of 2\n"
        b"[rank 3] error: the link is broken\n"
    )
    listener = Listener()
    said = [one for byte in lines for one in listener.feed(bytes([byte]))]
    assert [(one.kind, one.severity) for one in said] == [
        ("stall", "warning"),
        ("autotune", "info"),
        ("mismatch", "error"),
        ("runtime", "error"),
    ]
    assert said[2].text == "allreduce a: shapes differ"


def test_a_rank_that_prints_without_end_takes_no_memory() -> None:
    listener = Listener()
    for _ in range(100):
        assert not list(listener.feed(b"[rank 1] warning: " + b"x" * 65536))
    assert len(listener._rest) <= 4096


def test_what_several_ranks_tell_alike_is_one_event() -> None:
    events = Events()
    for rank in (3, 0, 1):
        events.add("mismatch", "shapes differ", 5.0, severity="error", ranks=[rank])
    (told,) = events.since(0)
    assert (told["ranks"], told["count"], told["id"], told["number"]) == ("0-1,3", 3, 1, 3)
    assert events.since(2) == [told]
    assert events.since(3) == []


def test_events_are_bounded_and_printable() -> None:
    events = Events()
    for number in range(3 * KEPT):
        events.add("launcher", f"\x1b[31m{number}\n" + "y" * 10_000, 1.0)
    kept = events.since(0)
    assert len(kept) == KEPT
    assert all(one["text"].isprintable() and len(one["text"]) <= 500 for one in kept)


# ---------------------------------------------------------------- elastic jobs


def test_a_recovery_is_told_phase_by_phase() -> None:
    job = Recovering()
    job.watch.ended(2, -9, "ended by SIGKILL")
    assert job.watch.snapshot()["job"]["state"] == "recovering"
    job.after(0.1)
    job.watch.membership(1, 0, [(1, 0, "waiting"), (3, 2, "member")])
    assert job.watch.snapshot()["ranks"][0]["state"] == "recovering"
    job.after(0.1)
    job.watch.membership(1, 0, [(1, 0, "waiting"), (3, 2, "waiting")])
    job.after(0.1)
    job.membership(2, {1: 0, 3: 1})
    job.after(0.1)
    job.report(2, {1: 50})
    job.report(2, {3: 50})
    job.after(0.5)
    job.report(2, {1: 51})
    assert job.phases == [
        ("ranks were lost", 0.0),
        ("a survivor has reported", 0.1),
        ("all survivors have reported", 0.2),
        ("they have a new view", 0.3),
        ("all ranks of the view have met", 0.4),
        ("the first step", 0.9),
    ]
    told = job.watch.snapshot()
    assert told["job"]["state"] == "running"
    (one,) = told["recoveries"]
    assert one["over"]
    assert one["lost"] == [{"rank": 1, "host": "node", "how": "ended by SIGKILL"}]
    assert [rank["rank"] for rank in told["ranks"]] == [0, 1]


def test_a_process_that_was_told_to_end_is_no_loss() -> None:
    job = Recovering()
    job.watch.ended(2, -15, "ended by SIGTERM", expected=True)
    assert job.watch.snapshot()["recoveries"] == []


def test_an_elastic_job_forgets_those_who_are_long_gone() -> None:
    job = Recovering()
    for process in range(10, 2010):
        job.watch.started(process, None, "node", 0)
        job.watch.ended(process, 1, "exit status 1")
    assert len(job.watch.snapshot()["ranks"]) < 300
    assert len(job.watch.snapshot()["events"]) <= KEPT


# ---------------------------------------------------------------- many ranks


def test_a_thousand_ranks_are_told_of_in_little_and_bounded_memory() -> None:
    import tracemalloc

    job = WatchedJob(1000)
    for _ in range(HISTORY):
        job.watch._history.append(job.watch._point(job.now))  # like after two minutes
    for _ in range(3):
        job.second()
    tracemalloc.start()
    try:
        job.second()
        before = tracemalloc.take_snapshot()
        for _ in range(3):
            job.second()
        grown = sum(
            one.size_diff for one in tracemalloc.take_snapshot().compare_to(before, "filename")
        )
    finally:
        tracemalloc.stop()
    assert grown < 1 << 20, grown
    answer = json.dumps(job.watch.snapshot(), separators=(",", ":")).encode()
    assert len(answer) < 600 << 10, len(answer)
    assert len(job.watch.snapshot()["ranks"]) == 1000
    assert len(job.watch.snapshot()["links"]) == 64
    assert job.sent_bytes / 7 < 1 << 20  # per second, if everything has changed
