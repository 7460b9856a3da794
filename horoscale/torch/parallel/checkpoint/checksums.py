"""Checksums of the data in a checkpoint's files, stored in a separate file.

    checksums.json    {"__0_0.distcp": [[offset, length, CRC-32], …], …}

torch.distributed.checkpoint ignores this file. Checkpoints written by other software have no
checksums and are not verified.
"""

from __future__ import annotations

import json
import mmap
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from horoscale.common.durable import write_text
from horoscale.torch.parallel.checkpoint.errors import CheckpointError

FILE = "checksums.json"

Sums = dict["tuple[str, int, int]", int]  # by file, offset and length


def compute(folder: Path, parts: Iterable[tuple[str, int, int]]) -> Sums:
    """Return the checksums of parts of files, given by file, offset and length."""
    found: Sums = {}
    by_file: dict[str, list[tuple[int, int]]] = {}
    for name, offset, length in dict.fromkeys(parts):
        by_file.setdefault(name, []).append((offset, length))
    for name, ranges in by_file.items():
        with (
            open(folder / name, "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
            memoryview(content) as whole,
        ):
            for offset, length in ranges:
                with whole[offset : offset + length] as part:
                    found[name, offset, length] = zlib.crc32(part)
    return found


def write(folder: Path, sums: Mapping[tuple[str, int, int], int]) -> None:
    """Write the checksums of all ranks' files and sync them to disk."""
    content: dict[str, list[tuple[int, int, int]]] = {}
    for (name, offset, length), value in sums.items():
        content.setdefault(name, []).append((offset, length, value))
    write_text(folder / FILE, json.dumps(content))


def read(folder: Path) -> Sums | None:
    """Return the checksums of a checkpoint, or None if it has none.

    Raises CheckpointError if they are damaged.
    """
    path = folder / FILE
    try:
        content = json.loads(path.read_text())
        return {
            (name, int(offset), int(length)): int(value)
            for name, parts in content.items()
            for offset, length, value in parts
        }
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None


def verify(folder: Path, sums: Sums, parts: Mapping[tuple[str, int, int], str]) -> None:
    """Compare parts of files with their checksums; `parts` maps each to its description.

    Raises CheckpointError, which names the file and the part, if a checksum differs or is missing.
    """
    for part, value in compute(folder, parts).items():
        if sums.get(part) != value:
            raise CheckpointError(
                f"{folder / part[0]} is damaged: {parts[part]} is not what was written (its "
                f"checksum is {value:08x}, and was {sums.get(part, 0):08x})"
            )
