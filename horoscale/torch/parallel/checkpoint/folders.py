"""The folders of checkpoints: written under a temporary name and renamed when complete.

DIR/checkpoint-000000000042/    .metadata, __0_0.distcp, __1_0.distcp …
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from pathlib import Path

from horoscale.common.durable import sync_folder
from horoscale.torch.parallel.checkpoint.errors import CheckpointError

METADATA = ".metadata"
_PREFIX = "checkpoint-"
_DIGITS = 12

_log = logging.getLogger("horoscale")


def latest(directory: str | os.PathLike[str]) -> Path | None:
    """Return the newest checkpoint in a directory, or None."""
    found = _all(Path(directory))
    return found[-1] if found else None


def find(directory: Path) -> Path:
    """Return the newest checkpoint in a directory, or the directory if it is a checkpoint.

    Raises CheckpointError if there is none.
    """
    if (directory / METADATA).exists():
        return directory
    found = latest(directory)
    if found is None:
        raise CheckpointError(f"there is no checkpoint in {directory}")
    return found


def begin(directory: Path, step: int | None) -> tuple[Path, Path]:
    """Create the folder in which a checkpoint is written; return it, and its final name.

    Leftovers of earlier processes are removed, since only one job at a time writes to a directory.
    Raises ValueError if a checkpoint of this step exists or the step is negative, and OSError if
    the folder cannot be created.
    """
    if step is not None and step < 0:
        raise ValueError(f"step={step}: checkpoints are numbered from 0 on")
    directory.mkdir(parents=True, exist_ok=True)
    if step is None:
        newest = latest(directory)
        step = 1 if newest is None else _number_of(newest) + 1
    place = directory / f"{_PREFIX}{step:0{_DIGITS}}"
    if place.exists():
        raise ValueError(f"there is a checkpoint of step {step} already: {place}")
    for left in directory.glob(f".{_PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)
    beside = directory / f".{place.name}.{secrets.token_hex(4)}"
    beside.mkdir(mode=0o700)
    return beside, place


def finish(beside: Path, place: Path, keep: int | None) -> None:
    """Rename a complete checkpoint to its final name, and remove others so that `keep` remain.

    It keeps this one, whatever its number, and the newest of the others. Training that resumes
    from an older checkpoint writes lower numbers than existing ones.
    """
    _give_place(beside, place)
    if keep is not None:
        others = [one for one in _all(place.parent) if one != place]
        for old in others[: max(0, len(others) - keep + 1)]:
            # Renamed first, so that a partly removed folder is not taken for a checkpoint.
            gone = old.with_name(f".{old.name}.{secrets.token_hex(4)}")
            try:
                os.rename(old, gone)
            except OSError as error:  # the new checkpoint is complete nevertheless
                _log.warning("the checkpoint %s could not be removed: %s", old, error)
                continue
            shutil.rmtree(gone, ignore_errors=True)


def _give_place(beside: Path, place: Path) -> None:
    sync_folder(beside)
    os.rename(beside, place)
    sync_folder(place.parent)


def _all(directory: Path) -> list[Path]:
    return sorted(filter(_is_ours, directory.glob(f"{_PREFIX}*")), key=_number_of)


def _is_ours(place: Path) -> bool:
    """Return whether this package wrote it: transformers' Trainer creates "checkpoint-500"."""
    number = place.name.removeprefix(_PREFIX)
    return number.isdecimal() and len(number) >= _DIGITS


def _number_of(place: Path) -> int:
    return int(place.name.removeprefix(_PREFIX))
