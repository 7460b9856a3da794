"""Checkpoints: commits on disk, from which a job resumes on any number of ranks.

    DIR/LATEST                          the name of the newest one
    DIR/commit-000000000042/
        manifest.json                   number, tree of the values, element types, sizes, hashes
        tensors.safetensors             the tensors, in a public format

A checkpoint is written to a temporary folder and then renamed, so it is never incomplete. Values
that are neither tensors nor of plain types are pickled in the manifest: load only trusted
checkpoints.
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

from horoscale.common.durable import sync_folder, write_text
from horoscale.elastic.arrays import Spec
from horoscale.elastic.safetensors import read_tensors, write_tensors
from horoscale.elastic.shard_files import ShardGroup, forget
from horoscale.elastic.snapshot import Snapshot

FORMAT = 1
KEPT = 3
_LATEST = "LATEST"
_MANIFEST = "manifest.json"
_TENSORS = "tensors.safetensors"
_PREFIX = "commit-"
_DIVIDED = ".metadata"  # of horoscale.torch.parallel's checkpoints


def write_checkpoint(
    folder: Path,
    number: int,
    snapshot: Snapshot,
    did: Callable[[int], None] = lambda nbytes: None,
    shards: ShardGroup | None = None,
) -> Path:
    """Write a commit, sync it to disk, and return its folder. Has no effect if it exists.

    `shards` is the group of the commit's shards, which the ranks write. `did` is called with the
    number of bytes of each piece written. The newest three checkpoints are kept. Raises OSError if
    the commit cannot be written; existing checkpoints are then kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"{_PREFIX}{number:012}"
    _write_folder(place, number, snapshot, did, shards)
    _point_to(folder, place.name)
    # Older checkpoints are no longer needed, nor the files of processes that died while writing.
    left = [one for one in folder.glob(f".{_PREFIX}*") if one.name < f".{place.name}"]
    whole = [one for one in _all(folder) if not _lacks_shards(one)]
    # The newest checkpoint may still become complete. Older ones never will, for example if a rank
    # cannot write its shards.
    kept = {*whole[-KEPT:], *_all(folder)[-KEPT:]}
    for one in [*(one for one in _all(folder) if one not in kept), *left]:
        shutil.rmtree(one, ignore_errors=True)
    numbers = sorted(map(_number_of, kept))
    forget(folder, numbers, before=numbers[-KEPT:][0])
    return place


def write_shards(
    folder: Path,
    group: ShardGroup,
    rank: int,
    snapshot: Snapshot,
    did: Callable[[int], None] = lambda nbytes: None,
) -> None:
    """Write a rank's shards of a commit and sync them to disk. Has no effect if they exist.

    Raises OSError if they cannot be written.
    """
    place = group.place(folder, rank)
    place.parent.mkdir(parents=True, exist_ok=True)
    _write_folder(place, group.number, snapshot, did)


def read_shards(folder: Path, group: ShardGroup, rank: int) -> Snapshot:
    """Return the shards of a rank. Raises OSError or ValueError if they are incomplete."""
    return _read(group.place(folder, rank))[1]


def shards_of(folder: Path, number: int) -> tuple[Path, ShardGroup] | None:
    """Return the location of a checkpoint's shards, or None if it has none.

    `folder` is the checkpoint or the folder that contains it.
    """
    place = folder if (folder / _MANIFEST).exists() else folder / f"{_PREFIX}{number:012}"
    fields = json.loads((place / _MANIFEST).read_text()).get("shards")
    return None if fields is None else (place.parent, ShardGroup.from_fields(fields))


def read_checkpoint(folder: Path) -> tuple[int, Snapshot]:
    """Return the number and values of the newest complete checkpoint in a folder.

    Raises ValueError if there is none. The message names damaged ones.
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
    """Return whether a folder is or contains a checkpoint, complete or not.

    Includes checkpoints of a sharded training state, although other classes load them.
    """
    divided = [folder / _DIVIDED, *folder.glob(f"checkpoint-*/{_DIVIDED}")]
    return bool(_candidates(folder)) or any(one.exists() for one in divided)


def may_begin_anew(folder: Path, own: Path | None) -> bool:
    """Return whether a job that resumes from a folder without checkpoints may start from scratch.

    A restarted job may have ended before its first checkpoint. The folder may therefore be empty,
    or be `own`, to which the job writes its checkpoints and which need not exist yet.
    """
    if own is not None and folder.absolute() == own.absolute():
        return True
    # Remains of an interrupted write do not count.
    return folder.is_dir() and all(one.name.startswith(".") for one in folder.iterdir())


def newest_number(folder: Path) -> int:
    """Return the highest number of a checkpoint in a folder, complete or not; 0 if none exists."""
    return max(map(_number_of, _all(folder)), default=0)


def _number_of(place: Path) -> int:
    number = place.name.removeprefix(_PREFIX)
    return int(number) if number.isdecimal() else 0


def _lacks_shards(place: Path) -> list[int]:
    """Return the ranks whose shards a checkpoint lacks."""
    try:
        fields = json.loads((place / _MANIFEST).read_text()).get("shards")
        return [] if fields is None else ShardGroup.from_fields(fields).missing(place.parent)
    except (OSError, ValueError, TypeError, AttributeError):
        return []  # damage is reported on reading


def _write_folder(
    place: Path,
    number: int,
    snapshot: Snapshot,
    did: Callable[[int], None],
    shards: ShardGroup | None = None,
) -> None:
    """Write to a temporary folder and rename it, so that the result is never incomplete."""
    if place.exists():
        return
    beside = place.parent / f".{place.name}.{secrets.token_hex(4)}"
    beside.mkdir(mode=0o700)
    try:
        _fill(beside, number, snapshot, did, shards)
        _move(beside, place)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _fill(
    place: Path,
    number: int,
    snapshot: Snapshot,
    did: Callable[[int], None],
    shards: ShardGroup | None,
) -> None:
    size, digest = write_tensors(place / _TENSORS, snapshot.blocks, did)
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "number": number,
        "tree": snapshot.tree,
        "tensors": {
            name: [one.spec.dtype, list(one.spec.shape)] for name, one in snapshot.blocks.items()
        },
        "files": {_TENSORS: {"bytes": size, "blake2b": digest}},
    }
    if shards is not None:
        manifest["shards"] = shards.to_fields()
    write_text(place / _MANIFEST, json.dumps(manifest))
    for name in (_TENSORS, _MANIFEST):
        (place / name).chmod(0o600)
    sync_folder(place)


def _read(place: Path) -> tuple[int, Snapshot]:
    manifest: dict[str, Any] = json.loads((place / _MANIFEST).read_text())
    if manifest["format"] != FORMAT:
        raise ValueError(f"its format is {manifest['format']}, this version reads {FORMAT}")
    if lacking := _lacks_shards(place):
        raise ValueError(f"the shards of ranks {lacking} are missing")
    specs = {
        name: Spec(dtype, tuple(shape)) for name, (dtype, shape) in manifest["tensors"].items()
    }
    file = manifest["files"][_TENSORS]
    blocks = read_tensors(place / _TENSORS, specs, file["bytes"], file["blake2b"])
    return manifest["number"], Snapshot(manifest["tree"], blocks)


def _move(beside: Path, place: Path) -> None:
    """Rename. Another rank may have written the same commit first."""
    try:
        os.rename(beside, place)
    except OSError:
        if not place.exists():
            raise
    sync_folder(place.parent)


def _point_to(folder: Path, name: str) -> None:
    with contextlib.suppress(OSError):
        if (folder / _LATEST).read_text().strip() >= name:  # another rank has written a newer one
            return
    beside = folder / f".{_LATEST}.{secrets.token_hex(4)}"
    write_text(beside, name + "\n")
    os.replace(beside, folder / _LATEST)
    sync_folder(folder)


def _candidates(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, or the folder if it is one, newest first."""
    if (folder / _MANIFEST).exists():
        return [folder]
    return _all(folder)[::-1]


def _all(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{_PREFIX}*"))
