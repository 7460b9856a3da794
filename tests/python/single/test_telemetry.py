"""What a rank reports to watchers of its job: changes, and each note of the library once."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest

from horoscale import _journal
from horoscale.common import telemetry
from horoscale.common.telemetry import MAX_LINE_BYTES, Telemetry

COPIES = """
import socket
import horoscale.numpy as hvd
from horoscale.common.telemetry import Telemetry

hvd.init()
Telemetry._run = lambda self: None  # no reports of its thread
own, other = socket.socketpair()
telemetry = Telemetry(own)
before = hvd.metrics()["metrics_copies"]
for _ in range(10):
    telemetry.tell(telemetry.read())
print(hvd.metrics()["metrics_copies"] - before)
"""


@pytest.fixture
def told():
    """A telemetry between two jobs, which reports its clock itself; and a reader of its lines."""
    own, other = socket.socketpair()
    other.settimeout(30)
    one = Telemetry(own)
    lines = other.makefile("rb")
    json.loads(lines.readline())  # the first, from its thread
    yield one, lambda: json.loads(lines.readline())
    lines.close()
    other.close()
    own.close()


def line_with(read, name: str) -> dict:
    """The next line with this key, skipping the thread's clock reports."""
    while name not in (line := read()):
        pass
    return line


def test_lines_have_what_has_changed(told) -> None:
    one, read = told
    one.tell({"a": 1, "b": [1, 2]})
    assert line_with(read, "a") == {"a": 1, "b": [1, 2]}
    one.tell({"a": 1, "b": [1, 2]})
    one.tell({"a": 2, "b": [1, 2]})
    assert line_with(read, "a") == {"a": 2}


def test_notes_are_told_once(told) -> None:
    one, read = told
    _journal.note("balance", "batch sizes by rank are now 3, 1")
    one.tell({})
    notes = line_with(read, "notes")["notes"]
    assert ["balance", "batch sizes by rank are now 3, 1"] in notes
    one.tell({})
    one.tell({"end": 1})
    assert "notes" not in line_with(read, "end")


def test_a_line_that_would_be_too_long_is_left_out(told) -> None:
    one, read = told
    one.tell({"long": "x" * MAX_LINE_BYTES})
    one.tell({"end": 1})
    assert line_with(read, "end") == {"end": 1}


def test_counters_of_the_script_are_told(told, monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = told
    monkeypatch.setattr(telemetry, "_counters", {})
    telemetry.set_counters({"step": 7})
    assert one.read() | {"at": 0} == {"step": 7, "at": 0, "view": 0, "sets": []}


def of_set(lossy: bool = True) -> dict:
    """The encodings in the metrics of a process set."""
    if not lossy:
        return {"encodings": {}, "adaptive": {}}
    own = {"calls": 2, "bytes_before": 512, "bytes_after": 132, "relative_error": 0.0061234567}
    chosen = ("int8", "none", "topk(41 of 4096)", "topk(8 of 4096)")
    return {
        "encodings": {"int8": own},
        "adaptive": {f"tensor {number}": {"encoding": one} for number, one in enumerate(chosen)},
    }


def test_encodings_are_told_by_process_set(told) -> None:
    one, _ = told
    found = one._encodings({"0": of_set(), "1": of_set(lossy=False)})
    assert found == {
        "encodings": {"0": {"int8": [512, 132, 0.006123]}},
        "adaptive": {"0": {"int8": 1, "none": 1, "topk": 2}},
    }


def test_of_many_process_sets_the_first_that_encode_are_told(told) -> None:
    one, _ = told
    sets = {str(number): of_set(lossy=number >= 4) for number in range(20)}
    eight = [str(number) for number in range(4, 12)]
    assert list(one._encodings(sets)["encodings"]) == eight
    sets["0"] = of_set()
    assert list(one._encodings(sets)["encodings"]) == eight
    del sets["5"]
    assert list(one._encodings(sets)["encodings"]) == [*eight[:1], *eight[2:], "0"]


def test_a_descriptor_that_is_another_file_is_not_taken() -> None:
    with socket.socket() as other:
        assert telemetry._inherited(f"{other.fileno()}:1") is None
    assert telemetry._inherited("nonsense") is None
    assert telemetry._inherited("999999:1") is None


def test_a_report_takes_one_copy_of_the_runtimes_counters() -> None:
    program = [sys.executable, "-c", COPIES]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.split() == ["11"]  # the last one is the caller's


def test_the_journal_keeps_the_newest() -> None:
    before = _journal.since(0)[-1].number if _journal.since(0) else 0
    for number in range(200):
        _journal.note("test", f"{number}")
    kept = _journal.since(before)
    assert [one.text for one in kept] == [str(number) for number in range(136, 200)]
    assert _journal.since(kept[-1].number) == []
