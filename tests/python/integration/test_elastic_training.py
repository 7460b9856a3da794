"""Elastic training with real deaths: the bits are those of a fault-free run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from launcher_process import environment, launcher_command
from support.ranks import run_ranks

SECONDS = 300.0  # for events that take a few seconds
PROGRAM = Path(__file__).with_name("elastic_training.py")


def train(
    folder: Path,
    *arguments: object,
    flags: tuple[object, ...],
    program: Path = PROGRAM,
    **variables: str,
) -> list[dict[str, Any]]:
    """Return the files of the ranks that reached the end."""
    folder.mkdir()
    command = [sys.executable, program, folder, *arguments]
    job = subprocess.run(
        launcher_command(*flags, *command),
        env=environment(variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=SECONDS,
    )
    assert job.returncode == 0, job.stderr.decode()[-4000:]
    return results(folder)


def results(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(one.read_text()) for one in sorted(folder.glob("done.*"))]


def events(folder: Path) -> list[dict[str, Any]]:
    lines = [line for log in folder.glob("log.*") for line in log.read_text().splitlines()]
    return sorted(map(json.loads, lines), key=lambda one: one["time"])


def without_faults(folder: Path, views: list[tuple[int, int]], steps: int) -> str:
    """Train the same views as separate jobs, each resumed from the previous one's checkpoint."""
    checkpoints = folder / "checkpoints"
    ends = [begin for begin, _ in views[1:]] + [steps]
    for number, ((_, size), end) in enumerate(zip(views, ends, strict=True)):
        place = folder / str(number)
        place.mkdir(parents=True)
        variables = {"HOROSCALE_CHECKPOINT_DIR": str(checkpoints)}
        if number:
            variables["HOROSCALE_RESUME"] = str(checkpoints)
        program = f"import sys, runpy\nsys.argv[1:] = {[str(place), str(end)]}\n"
        program += f"sys.path.insert(0, {str(PROGRAM.parent)!r})\n"
        program += f"runpy.run_path({str(PROGRAM)!r}, run_name='__main__')"
        ended = run_ranks(size, program, SECONDS, **variables)
        assert all(one.returncode == 0 for one in ended), ended
    [bits] = {one["bits"] for one in results(place)}
    return bits


@pytest.mark.timeout(2 * SECONDS)
def test_deaths_leave_no_trace_in_the_weights(tmp_path: Path) -> None:
    """A rank dies within backward(), then rank 0; replacements join while the others train."""
    steps = 40
    done = train(
        tmp_path / "faults", steps, 7, 2, 20, 0,
        flags=("-np", 3, "--min-np", 1),
        FULL_SIZE="3",
    )  # fmt: skip
    assert sorted(one["rank"] for one in done) == [0, 1, 2]
    [bits] = {one["bits"] for one in done}
    [views] = {tuple(map(tuple, one["views"])) for one in done}
    assert views[0] == (0, 3)
    assert views[1][0] == 7
    assert views[-1][1] == 3
    seen = events(tmp_path / "faults")
    assert [one["step"] for one in seen if one["event"] == "kill"] == [7, 20]
    for kill in (one for one in seen if one["event"] == "kill"):
        after = [one for one in seen if one["view"] > kill["view"] and one["event"] == "begin"]
        assert after[0]["step"] == kill["step"]  # every step commits, so nothing is lost
    [last] = {one["steps"] for one in done}
    assert bits == without_faults(tmp_path / "plain", list(views), last)


@pytest.mark.timeout(2 * SECONDS)
def test_a_death_within_backward(tmp_path: Path) -> None:
    """The survivors continue with the same wrapped optimizer, and with autotuning."""
    done = train(
        tmp_path / "faults", 20, 7, 1,
        flags=("-np", 3, "--min-np", 2),
        program=PROGRAM.with_name("elastic_torch.py"),
        HOROSCALE_AUTOTUNE="1",
    )  # fmt: skip
    views = done[0]["views"]
    assert views[0] == [0, 3]
    assert views[1][0] == 7
    assert len({one["bits"] for one in done}) == 1
