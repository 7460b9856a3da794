"""Lightning in elastic jobs: it continues from its last checkpoint, or says why it can't."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.ranks import clean_environment

pytest.importorskip("lightning")

SECONDS = 150
PROGRAM = Path(__file__).with_name("elastic_rank.py")
MISTAKES = """
import lightning
import horoscale.lightning
import horoscale.torch as hvd

hvd.init()
outside = [
    lambda: lightning.Trainer(strategy="horoscale", accelerator="cpu"),
    lambda: lightning.Fabric(strategy="horoscale", accelerator="cpu"),
]
inside = [
    outside[1],
    lambda: horoscale.lightning.HoroscaleStrategy(process_set=hvd.ProcessSet([0])),
]

def check(ways):
    for way in ways:
        try:
            way()
        except RuntimeError as error:
            print("refused:", error, flush=True)

check(outside)
hvd.elastic.run(lambda state: check(inside))(hvd.elastic.ObjectState())
"""

pytestmark = pytest.mark.timeout(2 * SECONDS)


def run(*command: object) -> subprocess.CompletedProcess[str]:
    launcher = (sys.executable, "-m", "horoscale.runner")
    return subprocess.run(
        [*launcher, *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        env=clean_environment() | {"OMP_NUM_THREADS": "1"},
        check=False,
    )


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    """What each process has written, in a job that loses a rank and gets another one."""
    folder = tmp_path_factory.mktemp("elastic")
    job = run("-np", 3, "--min-np", 2, sys.executable, PROGRAM, folder)
    assert job.returncode == 0, job.stdout[-10_000:]
    files = sorted(folder.glob("*.jsonl"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def starts(lines: list[list[dict[str, Any]]], size: int, after: int) -> list[dict[str, Any]]:
    return [
        line
        for process in lines
        for line in process
        if line["what"] == "start" and line["size"] == size and line["step"] >= after
    ]


def test_after_a_loss_the_survivors_continue_from_the_last_checkpoint(lines: Any) -> None:
    assert sorted(one["step"] for one in starts(lines, size=3, after=0))[:3] == [0, 0, 0]
    two = starts(lines, size=2, after=1)
    assert sorted((one["rank"], one["step"], one["world"]) for one in two) == [
        (0, 10, 2),
        (1, 10, 2),
    ]


def test_a_new_rank_joins_at_a_checkpoint_and_nothing_is_repeated(lines: Any) -> None:
    three = starts(lines, size=3, after=10)
    (step,) = {one["step"] for one in three}
    assert sorted((one["rank"], one["world"]) for one in three) == [(0, 3), (1, 3), (2, 3)]
    assert step % 5 == 0
    alone = [
        line["step"]
        for process in lines
        for line in process
        if line["what"] == "step" and line["size"] == 2
    ]
    assert max(alone) == step


def test_weights_are_those_of_the_checkpoint_on_all_ranks(lines: Any) -> None:
    weights: dict[tuple[int, int], set[tuple[str, ...]]] = {}
    for process in lines:
        for line in process:
            weights.setdefault((line["size"], line["step"]), set()).add(tuple(line["weights"]))
    assert all(len(one) == 1 for (_, step), one in weights.items() if step > 10)
    for size, before in ((2, 3), (3, 2)):
        (step,) = {one["step"] for one in starts(lines, size, after=10)}
        assert weights[size, step] == weights[before, step]
    ends = [line for process in lines for line in process if line["what"] == "end"]
    assert len(ends) == 3
    assert len({tuple(line["weights"]) for line in ends}) == 1


def test_a_rank_that_is_terminated_is_replaced_like_one_that_dies(tmp_path: Path) -> None:
    job = run("-np", 3, "--min-np", 2, sys.executable, PROGRAM, tmp_path, "SIGTERM")
    assert job.returncode == 0, job.stdout[-10_000:]
    files = tmp_path.glob("*.jsonl")
    ended = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert [one["size"] for one in ended if one["what"] == "end"] == [3, 3, 3], job.stdout
    assert len(starts([ended], size=3, after=10)) == 3


def test_what_could_not_continue_is_refused_with_a_sentence() -> None:
    job = run("-np", 1, "--min-np", 1, sys.executable, "-c", MISTAKES)
    assert job.returncode == 0, job.stdout
    refused = [line.partition("refused: ")[2] for line in job.stdout.splitlines()]
    refused = [one for one in refused if one]
    assert len(refused) == 4
    assert 'fit(ckpt_path="last") in a function of hvd.elastic.run' in refused[0]
    for one, what in zip(refused[1:], ("Fabric", "Fabric", "process_set"), strict=True):
        assert what in one
        assert "does not support elastic jobs" in one
    assert "Traceback" not in job.stdout
