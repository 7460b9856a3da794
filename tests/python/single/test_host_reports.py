"""The reports of a host's ranks, merged for the launcher."""

from __future__ import annotations

import json

import pytest

from horoscale.runner.host_reports import MAX_LINE_BYTES, MAX_REPORT_BYTES, HostReports
from horoscale.runner.watching import StatusSpec, Watching
from horoscale.watch.job import JobWatch


class Sent:
    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.reports = HostReports(self.payloads.append)

    @property
    def values(self) -> list[dict]:
        return [json.loads(payload) for payload in self.payloads]


def test_changes_are_put_together_and_sent_once_a_second() -> None:
    sent = Sent()
    assert sent.reports.deadline is None
    sent.reports.take(3, b'{"at":1,"x":1}\n')
    sent.reports.take(4, b'{"at":1}\n')
    sent.reports.check(10.0, is_behind=False)
    sent.reports.take(3, b'{"at":2}\n')
    sent.reports.take(3, b'{"at":3,"y":2}\n')
    assert sent.reports.deadline == 11.0
    sent.reports.check(10.9, is_behind=False)
    assert len(sent.payloads) == 1
    sent.reports.check(11.0, is_behind=False)
    assert sent.values == [{"3": {"at": 1, "x": 1}, "4": {"at": 1}}, {"3": {"at": 3, "y": 2}}]
    assert sent.reports.deadline is None


def test_a_launcher_that_is_behind_gets_the_newest_later() -> None:
    sent = Sent()
    for second in range(1000):
        sent.reports.take(0, json.dumps({"at": second, "notes": [["mismatch", second]]}).encode())
        sent.reports.check(float(second), is_behind=True)
    assert sent.payloads == []
    sent.reports.flush()
    ((_, told),) = sent.values[0].items()
    assert told["at"] == 999
    assert [note[1] for note in told["notes"]] == list(range(984, 1000))


def test_many_ranks_are_several_frames_and_nonsense_is_none() -> None:
    sent = Sent()
    for process in range(100):
        sent.reports.take(process, json.dumps({"sets": "s" * 20_000}).encode())
    for line in (b"", b"5", b"[" * 5000, b"{", b"\xff", b'"x"'):
        sent.reports.take(500, line)
    sent.reports.flush()
    assert all(len(payload) < 2 * MAX_REPORT_BYTES for payload in sent.payloads)
    assert {int(one) for part in sent.values for one in part} == set(range(100))


def test_a_rank_that_says_too_much_is_left_out() -> None:
    sent = Sent()
    sent.reports.take(1, b'{"at":1}')
    sent.reports.take(1, json.dumps({"long": "x" * MAX_LINE_BYTES}).encode())
    for number in range(10_000):
        sent.reports.take(1, json.dumps({f"name {number}": "x" * 100}).encode())
    for number in range(60):
        sent.reports.take(2, json.dumps({f"name {number}": "x" * 20_000}).encode())
    sent.reports.flush()
    (told,) = sent.values
    assert told.keys() == {"1"}
    assert told["1"]["at"] == 1
    assert len(told["1"]) <= 64


def test_what_is_nested_too_deeply_is_left_out() -> None:
    sent: list[bytes] = []
    reports = HostReports(sent.append)
    deep: object = 0
    for _ in range(100_000):
        deep = [deep]
    reports._changed[0] = {"at": deep}
    reports.take(1, b'{"at": 2}')
    reports.flush()
    assert [json.loads(frame) for frame in sent] == [{"1": {"at": 2}}]


def test_a_fault_in_watching_ends_watching_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    watching = Watching(StatusSpec(port=0), ["python", "train.py"], elastic=False)

    def fail(*_: object) -> None:
        raise ZeroDivisionError("in the watch")

    monkeypatch.setattr(JobWatch, "host", fail)
    watching.host("a", "up")
    assert not watching.wanted
    watching.host("a", "lost")
    told = capsys.readouterr().err
    assert told.count("the status page stopped") == 1
    assert "ZeroDivisionError: in the watch" in told
