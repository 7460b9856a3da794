"""Which folders are checkpoints, and which of them are kept; without ranks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("torch")

from horoscale.torch.parallel.checkpoint import folders


def saved(directory: Path, step: int | None, keep: int | None) -> list[int]:
    """Make an empty checkpoint; return the numbers of those that exist then."""
    beside, place = folders.begin(directory, step)
    folders.finish(beside, place, keep)
    assert place.is_dir()
    return sorted(int(one.name.removeprefix("checkpoint-")) for one in directory.iterdir())


def test_the_newest_remain(tmp_path: Path) -> None:
    for step, keep, expected in [
        (None, 2, [1]),
        (5, 2, [1, 5]),
        (None, 2, [5, 6]),
        (8, None, [5, 6, 8]),
        (9, 5, [5, 6, 8, 9]),
        (10, 1, [10]),
    ]:
        assert saved(tmp_path, step, keep) == expected


def test_what_was_written_remains_with_whatever_number(tmp_path: Path) -> None:
    """Training resumed from an older checkpoint has smaller numbers than existing ones."""
    for step in (5, 10, 15):
        saved(tmp_path, step, None)
    assert saved(tmp_path, 6, 3) == [6, 10, 15]
    assert saved(tmp_path, 7, 1) == [7]


def test_folders_of_others_are_neither_loaded_nor_removed(tmp_path: Path) -> None:
    """The Trainer of transformers numbers its folders, too."""
    for name in ("checkpoint-500", "checkpoint-old", "checkpoint-1"):
        (tmp_path / name).mkdir()
    assert folders.latest(tmp_path) is None
    for _ in range(2):
        beside, place = folders.begin(tmp_path, None)
        folders.finish(beside, place, 1)
    assert folders.latest(tmp_path) == place
    names = sorted(one.name for one in tmp_path.iterdir())
    assert names == ["checkpoint-000000000002", "checkpoint-1", "checkpoint-500", "checkpoint-old"]


def test_numbers_begin_with_0(tmp_path: Path) -> None:
    assert saved(tmp_path, 0, None) == [0]
    with pytest.raises(ValueError, match=r"step=-1: checkpoints are numbered from 0 on"):
        folders.begin(tmp_path, -1)


def test_an_old_one_that_can_not_be_removed_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert saved(tmp_path, 1, None) == [1]
    rename = os.rename

    def refusing(source: Path, target: Path) -> None:
        if not source.name.startswith("."):
            raise PermissionError(f"not {source.name}")
        rename(source, target)

    monkeypatch.setattr(os, "rename", refusing)
    assert saved(tmp_path, 2, 1) == [1, 2]
    assert "checkpoint-000000000001 could not be removed: not checkpoint" in caplog.text
