"""Timelines of real jobs: merged, and analyzed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from launcher_process import run_launcher
from support.links import make_link

from horoscale.timeline import TimelineError, merge, read, read_job
from horoscale.timeline.report import report
from horoscale.timeline.steps import lateness, step_title, steps

STEPS = 20
OPERATIONS = 2 + 3 * STEPS  # including one in hvd.init()
# Rank 1 comes 20 ms late to each step, after the others have submitted.
PROGRAM = """
import sys, time
import numpy as np
import horoscale.numpy as hvd
hvd.init()
tensors = [np.ones(1000 * (i + 1), np.float32) for i in range(3)]
hvd.broadcast(tensors[0], root_rank=0, name="weights")
for step in range(int(sys.argv[1])):
    if hvd.rank() == 1:
        time.sleep(0.02)
    handles = [hvd.allreduce_async(one, name=f"gradient.{i}") for i, one in enumerate(tensors)]
    for handle in handles:
        hvd.synchronize(handle)
hvd.shutdown()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the timelines of a two-rank job."""
    folder = tmp_path_factory.mktemp("timelines")
    job = run_launcher(
        "-np", 2, "--timeline-filename", folder / "job.json", sys.executable, "-c", PROGRAM, STEPS
    )
    assert job.returncode == 0, job.stderr
    return folder


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "horoscale.timeline", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_operations_have_their_phases_in_order(place: Path) -> None:
    for one in read_job(place):
        assert len(one.operations) == OPERATIONS
        for operation in one.operations:
            times = operation.submitted, operation.planned, operation.started, operation.done
            # The file has nanoseconds.
            assert all(later - earlier > -1e-8 for earlier, later in pairwise(times))
        sizes = {operation.title: operation.arguments["bytes"] for operation in one.operations}
        own = {f"set 0: gradient.{i}": 4000 * (i + 1) for i in range(3)} | {"set 0: weights": 4000}
        assert own.items() <= sizes.items()
        assert len(sizes) == len(own) + 1


def test_steps_and_who_waited_for_whom(place: Path) -> None:
    ranks = read_job(place)
    assert step_title(ranks[0].operations) == "set 0: gradient.0"
    own = steps(ranks[0], "set 0: gradient.0")
    assert len(own) == STEPS - 1
    for step in own:
        assert step.end - step.begin > 0.015
        # Rank 0 only waits for rank 1, which sleeps.
        assert 0.01 < step.parts.exposed <= step.end - step.begin
        assert 0 < step.executed < step.end - step.begin
    found = lateness(ranks)
    assert found.operations == OPERATIONS
    assert found.last[1] > 2 * STEPS
    assert found.seconds[0, 1] > 0.01 * STEPS
    assert found.seconds.get((1, 0), 0.0) < found.seconds[0, 1] / 5


def test_the_report_as_a_program(place: Path) -> None:
    ended = command("report", place)
    assert ended.returncode == 0, ended.stderr
    assert '2 ranks; a step is from one "set 0: gradient.0" to the next' in ended.stdout
    rows = re.findall(r"^([01]) +19 +(\d+\.\d+) ", ended.stdout, re.MULTILINE)
    assert [rank for rank, _ in rows] == ["0", "1"]
    assert all(float(median) > 15 for _, median in rows)
    [waited] = re.findall(r"^rank 0 +- +(\d+\.\d+)$", ended.stdout, re.MULTILINE)
    assert float(waited) > 10
    assert re.search(r"The last to submit an operation was rank 1 in (\d\d|100)%", ended.stdout)
    other = command("report", place / "job.json", "--step", "set 0: gradient.2")
    assert '"set 0: gradient.2"' in other.stdout


def test_merging_as_a_program(place: Path, tmp_path: Path) -> None:
    merged = tmp_path / "all.json"
    ended = command("merge", place, "-o", merged)
    assert (ended.returncode, ended.stdout) == (0, f"{merged}: 2 ranks\n")
    events = json.loads(merged.read_text())
    assert {event["pid"] for event in events} == {0, 1}
    both = [json.loads((place / name).read_text()) for name in ("job.json", "job.json.rank1")]
    assert [event for event in events if event["name"] != "process_sort_index"] == both[0] + both[1]
    assert json.loads(command("merge", place / "job.json", "-o", "-").stdout) == events


def test_a_merged_file_is_for_its_owner_only(place: Path, tmp_path: Path) -> None:
    """Even if a file existed that others could read."""
    for name in ("job.json", "job.json.rank1"):
        (tmp_path / name).write_text((place / name).read_text())
    merged = tmp_path / "merged.json"
    assert command("merge", tmp_path).returncode == 0
    assert merged.stat().st_mode & 0o777 == 0o600
    size = merged.stat().st_size
    merged.chmod(0o666)
    merged.write_text(" " * (size + 1))
    assert command("merge", tmp_path / "job.json").returncode == 0
    assert (merged.stat().st_mode & 0o777, merged.stat().st_size) == (0o600, size)


@pytest.mark.parametrize("kind", ["symbolic", "hard", "pipe"])
def test_a_merged_file_goes_nowhere_that_somebody_else_has_chosen(
    place: Path, tmp_path: Path, kind: str
) -> None:
    precious, merged = tmp_path / "precious", tmp_path / "merged.json"
    precious.write_text("untouched")
    make_link(merged, kind, precious)
    ended = command("merge", place, "-o", merged)
    assert ended.returncode == 2
    assert ended.stderr.startswith("python -m horoscale.timeline: error: ")
    assert precious.read_text() == "untouched"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python has no -P before 3.11")
def test_nothing_is_imported_from_the_working_directory_with_p(place: Path, tmp_path: Path) -> None:
    """As docs/timeline.md says; without -P the same holds for any `python -m`."""
    (tmp_path / "argparse.py").write_text("raise SystemExit('taken over')")
    words = [sys.executable, "-P", "-m", "horoscale.timeline", "report", place]
    ended = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report", "/nonexistent"], "there is no /nonexistent"),
        (["report", "EMPTY"], "has no timelines"),
        (["merge", "OTHER"], "is not a timeline of horoscale"),
        (["report", "PLACE", "--step", "set 0: weights"], '"set 0: weights" does not come twice'),
    ],
)
def test_what_can_not_be_read(
    place: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other.json").write_text('{"a": 1}')
    places = {"EMPTY": tmp_path / "empty", "OTHER": tmp_path / "other.json", "PLACE": place}
    ended = command(*(places.get(word, word) for word in arguments))
    assert ended.returncode == 2
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


def test_two_jobs_in_a_folder(place: Path, tmp_path: Path) -> None:
    for name in ("one.json", "two.json"):
        for suffix in ("", ".rank1"):
            (tmp_path / f"{name}{suffix}").write_text((place / f"job.json{suffix}").read_text())
    with pytest.raises(TimelineError, match=r"several jobs \(one\.json, two\.json\)"):
        read_job(tmp_path)
    assert len(read_job(tmp_path / "two.json")) == 2


def test_a_file_that_is_cut_off(place: Path, tmp_path: Path) -> None:
    """Like a killed rank's file."""
    text = (place / "job.json").read_text()
    for cut in (len(text) // 2, len(text) - 3):
        (tmp_path / "job.json").write_text(text[:cut])
        found = read(tmp_path / "job.json").operations
        assert 0 < len(found) <= OPERATIONS
        assert found == read(place / "job.json").operations[: len(found)]


def test_the_clock_of_another_host_is_moved(place: Path, tmp_path: Path) -> None:
    expected = read_job(place)
    other = json.loads((place / "job.json.rank1").read_text())
    for event in other:
        if "ts" in event:
            event["ts"] += 1e12
    (tmp_path / "job.json").write_text((place / "job.json").read_text())
    (tmp_path / "job.json.rank1").write_text(json.dumps(other))
    moved = read_job(tmp_path)
    differences = [
        abs(one.done - same.done)
        for one, same in zip(moved[1].operations, expected[1].operations, strict=True)
    ]
    assert max(differences) < 0.1
    assert report(moved).splitlines()[0] == report(expected).splitlines()[0]
    assert {event["pid"] for event in json.loads(merge(moved))} == {0, 1}
