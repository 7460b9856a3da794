"""Checkpoints: commits that are written to disk and loaded again."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.ranks import run_ranks

import horoscale.torch as hvd
from horoscale.elastic.checkpointing import Checkpointing, checkpointing
from horoscale.elastic.checkpoints import read_checkpoint, write_checkpoint, write_shards
from horoscale.elastic.commits import Commits
from horoscale.elastic.pace import SHARE, Pace
from horoscale.elastic.shard_files import ShardGroup
from horoscale.elastic.snapshot import Snapshot


def snapshot_of(value: Any) -> Snapshot:
    snapshot = Snapshot()
    snapshot.take(value)
    return snapshot


VALUE = {
    "weights": torch.arange(5, dtype=torch.bfloat16),
    "complex": np.array([1 + 2j, 3j]),
    "empty": torch.empty(0, 3),
    "epoch": 3,
    "name": "ä",
    "set": {1, 2},
}


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    place = write_checkpoint(tmp_path, 42, snapshot_of(VALUE))
    number, snapshot = read_checkpoint(tmp_path)
    value = snapshot.value()
    assert number == 42
    assert torch.equal(value["weights"], VALUE["weights"])
    assert np.array_equal(value["complex"], VALUE["complex"])
    assert value["empty"].shape == (0, 3)
    assert (value["epoch"], value["name"], value["set"]) == (3, "ä", {1, 2})
    assert (tmp_path / "LATEST").read_text() == place.name + "\n"
    assert read_checkpoint(place)[0] == 42
    assert oct(place.stat().st_mode & 0o777) == "0o700"


def test_the_file_is_of_the_public_format(tmp_path: Path) -> None:
    place = write_checkpoint(tmp_path, 1, snapshot_of({"a": np.arange(3, dtype=np.float32)}))
    content = (place / "tensors.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert header == {"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}}
    assert np.frombuffer(content[8 + length :], np.float32).tolist() == [0, 1, 2]


def test_the_last_three_are_kept(tmp_path: Path) -> None:
    for number in range(1, 6):
        write_checkpoint(tmp_path, number, snapshot_of(number))
    assert [int(one.name[-3:]) for one in sorted(tmp_path.glob("commit-*"))] == [3, 4, 5]
    assert sorted(one.name for one in tmp_path.iterdir() if one.name.startswith(".")) == []


def test_what_never_becomes_whole_is_not_kept_for_ever(tmp_path: Path) -> None:
    """From commit 3 on rank 1 can't write its shards."""
    for number in range(1, 9):
        group = ShardGroup(number, "ab", 1, 2)
        for rank in range(2 if number < 3 else 1):
            write_shards(tmp_path, group, rank, snapshot_of({"own": rank}))
        write_checkpoint(tmp_path, number, snapshot_of(number), shards=group)
    for kind in ("commit", "shards"):
        there = sorted(int(one.name[-3:]) for one in tmp_path.glob(f"{kind}-*"))
        assert there == [1, 2, 6, 7, 8], kind
    assert read_checkpoint(tmp_path)[0] == 2


@pytest.mark.parametrize("how", ["cut", "changed", "no manifest", "half a manifest"])
def test_a_damaged_one_is_passed_over(tmp_path: Path, how: str) -> None:
    for number in (1, 2):
        place = write_checkpoint(tmp_path, number, snapshot_of({"a": np.arange(9), "n": number}))
    tensors, manifest = place / "tensors.safetensors", place / "manifest.json"
    if how == "cut":
        os.truncate(tensors, tensors.stat().st_size - 1)
    elif how == "changed":
        content = bytearray(tensors.read_bytes())
        content[-1] ^= 1
        tensors.write_bytes(content)
    elif how == "no manifest":
        manifest.unlink()
    else:
        os.truncate(manifest, manifest.stat().st_size // 2)
    number, snapshot = read_checkpoint(tmp_path)
    assert (number, snapshot.value("n")) == (1, 1)


def test_nothing_to_resume_from(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"no checkpoint to resume from in {tmp_path}"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("value", ["", "x", "0", "0s", "0.0m", "-1", "5 d"])
def test_wrong_intervals(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("HOROSCALE_CHECKPOINT_DIR", "somewhere")
    monkeypatch.setenv("HOROSCALE_CHECKPOINT_EVERY", value or "nothing")
    with pytest.raises(ValueError, match="HOROSCALE_CHECKPOINT_EVERY="):
        checkpointing()


JOB = """
import os, numpy as np, horoscale.numpy as hvd
from horoscale import elastic
hvd.init()
state = elastic.ObjectState(weights=np.full(5, float(hvd.rank())), step=0)

@elastic.run
def train(state):
    print("begins at", state.step)
    while state.step < 6:
        if state.step == int(os.environ["FAIL_AT"]):
            raise hvd.HorovodInternalError("lost")
        state.weights += hvd.allreduce(np.full(5, state.step + 0.5), op=hvd.Average)
        state.step += 1
        state.commit()
    print(state.weights.tolist())

train(state)
"""


def test_a_job_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    def job(ranks: int, fail_at: int, **variables: str) -> list[str]:
        ended = run_ranks(ranks, JOB, FAIL_AT=str(fail_at), **variables)
        assert all((one.returncode != 0) == (fail_at < 6) for one in ended), ended
        return [one.stdout for one in ended]

    folder = {"HOROSCALE_CHECKPOINT_DIR": str(tmp_path), "HOROSCALE_CHECKPOINT_EVERY": "2"}
    job(2, 3, **folder)
    assert read_checkpoint(tmp_path)[1].value("step") == 3
    [resumed] = job(1, 9, HOROSCALE_RESUME=str(tmp_path), **folder)
    assert resumed.startswith("begins at 3\n")
    plain = job(2, 9)
    assert resumed.splitlines()[1] == plain[0].splitlines()[1] == plain[1].splitlines()[1]


def test_a_new_job_numbers_its_commits_above_what_is_there(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 40, snapshot_of({"step": -1}))
    (tmp_path / ".commit-000000000039.dead").mkdir()  # left by a killed process
    folder = {"HOROSCALE_CHECKPOINT_DIR": str(tmp_path), "HOROSCALE_CHECKPOINT_EVERY": "2"}
    [ended] = run_ranks(1, JOB, FAIL_AT="9", **folder)
    assert ended.stdout.startswith("begins at 0\n"), ended
    number, snapshot = read_checkpoint(tmp_path)
    assert (number, snapshot.value("step")) == (47, 6)
    assert (tmp_path / "LATEST").read_text() == "commit-000000000047\n"
    assert [one for one in tmp_path.iterdir() if one.name.startswith(".")] == []


class Clock:
    """Seconds that the test controls; waits for an event advance it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rested = 0.0

    def __call__(self) -> float:
        return self.now

    def event(self) -> threading.Event:
        clock = self

        class Event(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                assert timeout is not None
                if not self.is_set():
                    clock.now += timeout
                    clock.rested += timeout
                return self.is_set()

        return Event()


@pytest.mark.parametrize(
    ("budget_s", "hurries", "share"),
    [
        (None, False, SHARE),
        (1000.0, False, SHARE),
        (4.0, False, 0.5),
        (1.0, False, 1),
        (9, True, 1),
    ],
)
def test_the_writer_rests(budget_s: float | None, hurries: bool, share: float) -> None:
    clock = Clock()
    hurry = clock.event()
    if hurries:
        hurry.set()
    pace = Pace(hurry, 1000, budget_s, clock)
    for _ in range(1000):
        clock.now += 0.002  # of writing
        pace.did(1)
    assert 2.0 / clock.now == pytest.approx(share, rel=0.01)
    assert clock.rested == pytest.approx(clock.now - 2.0)


def test_who_ends_does_not_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first piece the writer rests for years, until the job ends."""
    monkeypatch.setattr("horoscale.elastic.pace.SHARE", 1e-10)
    resting = threading.Event()
    wait = threading.Event.wait

    def noted(event: threading.Event, timeout: float | None = None) -> bool:
        if timeout is not None and timeout > 1e6:
            resting.set()
        return wait(event, timeout)

    monkeypatch.setattr(threading.Event, "wait", noted)
    hvd.init()
    writer = Checkpointing(tmp_path, 0.0, 1)
    commits = Commits()
    commits.replace(snapshot_of({"a": np.zeros(64 << 20, np.uint8)}), 1)
    assert writer.is_due(1)
    writer.committed(commits)
    assert wait(resting, 60.0)
    assert not list(tmp_path.glob("commit-*"))
    commits.save({"a": np.ones(1)})
    commits.confirm()
    writer.write_now(commits)
    assert [read_checkpoint(one)[0] for one in sorted(tmp_path.glob("commit-*"))] == [1, 2]
    hvd.shutdown()
