"""Checkpoints: commits that go to disk and come back."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.ranks import run_ranks

import horoscale.torch as hvd
from horoscale.elastic.checkpointing import checkpointing
from horoscale.elastic.checkpoints import read_checkpoint, write_checkpoint
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
    (tmp_path / ".commit-000000000039.dead").mkdir()  # of a process that was killed
    folder = {"HOROSCALE_CHECKPOINT_DIR": str(tmp_path), "HOROSCALE_CHECKPOINT_EVERY": "2"}
    [ended] = run_ranks(1, JOB, FAIL_AT="9", **folder)
    assert ended.stdout.startswith("begins at 0\n"), ended
    number, snapshot = read_checkpoint(tmp_path)
    assert (number, snapshot.value("step")) == (47, 6)
    assert (tmp_path / "LATEST").read_text() == "commit-000000000047\n"
    assert [one for one in tmp_path.iterdir() if one.name.startswith(".")] == []


assert hvd.elastic
