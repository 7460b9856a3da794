"""Checkpoints: commits on disk, from which a job goes on that has ended, on any number of ranks.

    DIR/LATEST                          the name of the newest one
    DIR/commit-000000000042/
        manifest.json                   number, tree of the values, element types, sizes, hashes
        tensors.safetensors             the tensors, in a public format

A checkpoint is written beside its place and renamed, so that there is never half a one. Values that
are neither tensors nor plain are pickled in the manifest: load only what this user has written.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from horoscale.elastic.arrays import Spec
from horoscale.elastic.safetensors import read_tensors, write_tensors
from horoscale.elastic.snapshot import Snapshot

FORMAT = 1
KEPT = 3
_LATEST = "LATEST"
_MANIFEST = "manifest.json"
_TENSORS = "tensors.safetensors"
_PREFIX = "commit-"


def write_checkpoint(
    folder: Path,
    number: int,
    snapshot: Snapshot,
    did: Callable[[int], None] = lambda nbytes: None,
) -> Path:
    """Write a commit, through to the disk, and return its place; do nothing if it is there.

    `did` is called with the bytes of each piece that has been written. The newest three are kept.
    Raises OSError where it can't be written; what was there is kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"{_PREFIX}{number:012}"
    if not place.exists():
        beside = folder / f".{place.name}.{secrets.token_hex(4)}"
        beside.mkdir(mode=0o700)
        try:
            _fill(beside, number, snapshot, did)
            _move(beside, place)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    _point_to(folder, place.name)
    # What is older is not needed any more, nor what processes have left that died writing.
    left = [one for one in folder.glob(f".{_PREFIX}*") if one.name < f".{place.name}"]
    for old in [*_all(folder)[:-KEPT], *left]:
        shutil.rmtree(old, ignore_errors=True)
    return place


def read_checkpoint(folder: Path) -> tuple[int, Snapshot]:
    """Return the number and the values of the newest checkpoint in a folder that is whole.

    Raises ValueError where there is none; damaged ones are named in the message.
    """
    problems = []
    for place in _candidates(folder):
        try:
            return _read(place)
        except (OSError, ValueError, KeyError, TypeError) as error:
            problems.append(f"{place.name}: {error}")
    raise ValueError(
        f"there is no checkpoint to resume from in {folder}" + "".join(f"; {p}" for p in problems)
    )


def has_checkpoints(folder: Path) -> bool:
    """Tell whether a folder has checkpoints or is one, whole or not."""
    return bool(_candidates(folder))


def may_begin_anew(folder: Path, own: Path | None) -> bool:
    """Tell whether a job that is to resume from a folder without checkpoints begins anew there.

    A job that is started again may have ended before its first checkpoint. So the folder may be
    empty, or `own`, where the job writes its own ones, also if that is not there yet.
    """
    if own is not None and folder.absolute() == own.absolute():
        return True
    # What is left of a checkpoint that was being written counts as nothing.
    return folder.is_dir() and all(one.name.startswith(".") for one in folder.iterdir())


def newest_number(folder: Path) -> int:
    """Return the highest number of a checkpoint in a folder, whole or not; 0: there is none."""
    numbers = [place.name.removeprefix(_PREFIX) for place in _all(folder)]
    return max((int(one) for one in numbers if one.isdecimal()), default=0)


def _fill(place: Path, number: int, snapshot: Snapshot, did: Callable[[int], None]) -> None:
    size, digest = write_tensors(place / _TENSORS, snapshot.blocks, did)
    manifest = {
        "format": FORMAT,
        "number": number,
        "tree": snapshot.tree,
        "tensors": {
            name: [one.spec.dtype, list(one.spec.shape)] for name, one in snapshot.blocks.items()
        },
        "files": {_TENSORS: {"bytes": size, "blake2b": digest}},
    }
    _write(place / _MANIFEST, json.dumps(manifest))
    for name in (_TENSORS, _MANIFEST):
        (place / name).chmod(0o600)
    _sync_folder(place)


def _read(place: Path) -> tuple[int, Snapshot]:
    manifest: dict[str, Any] = json.loads((place / _MANIFEST).read_text())
    if manifest["format"] != FORMAT:
        raise ValueError(f"its format is {manifest['format']}, this version reads {FORMAT}")
    specs = {
        name: Spec(dtype, tuple(shape)) for name, (dtype, shape) in manifest["tensors"].items()
    }
    file = manifest["files"][_TENSORS]
    blocks = read_tensors(place / _TENSORS, specs, file["bytes"], file["blake2b"])
    return manifest["number"], Snapshot(manifest["tree"], blocks)


def _move(beside: Path, place: Path) -> None:
    """Rename; another rank may have been quicker with the same commit."""
    try:
        os.rename(beside, place)
    except OSError:
        if not place.exists():
            raise
    _sync_folder(place.parent)


def _point_to(folder: Path, name: str) -> None:
    with contextlib.suppress(OSError):
        if (folder / _LATEST).read_text().strip() >= name:  # another rank has a newer one
            return
    beside = folder / f".{_LATEST}.{secrets.token_hex(4)}"
    _write(beside, name + "\n")
    os.replace(beside, folder / _LATEST)
    _sync_folder(folder)


def _candidates(folder: Path) -> list[Path]:
    """Return the checkpoints of a folder, or the folder if it is one, the newest first."""
    if (folder / _MANIFEST).exists():
        return [folder]
    return _all(folder)[::-1]


def _all(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{_PREFIX}*"))


def _write(path: Path, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
