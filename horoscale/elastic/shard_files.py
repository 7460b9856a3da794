"""Shards in checkpoints: one folder per rank, next to the checkpoint.

    DIR/commit-000000000042/                                   values that all ranks share
    DIR/shards-000000000042/JOB-VIEW/RANK/manifest.json …      one rank's own values

Ranks write their shards without waiting for each other. A checkpoint is incomplete until all of its
shards exist.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_PREFIX = "shards-"


@dataclass(frozen=True)
class ShardGroup:
    """The shards of a commit, written by the ranks of one view of one job."""

    number: int
    job: str  # hexadecimal, identifies this run of the program
    view: int
    ranks: int

    def __post_init__(self) -> None:
        """Raise ValueError for values that no manifest contains."""
        numbers = (self.number, self.view, self.ranks)
        if not (all(type(one) is int for one in numbers) and isinstance(self.job, str)):
            raise ValueError(f"no group of shards: {self}")
        if self.job and not self.job.isalnum():
            raise ValueError(f"no group of shards: {self}")

    def place(self, folder: Path, rank: int) -> Path:
        """Return the folder of a rank's shards in a checkpoint folder."""
        return folder / f"{_PREFIX}{self.number:012}" / f"{self.job}-{self.view}" / str(rank)

    def missing(self, folder: Path) -> list[int]:
        """Return the ranks whose shards are missing."""
        return [rank for rank in range(self.ranks) if not self.place(folder, rank).is_dir()]

    def to_fields(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> ShardGroup:
        """Return the group with these JSON fields. Raises TypeError or ValueError."""
        return cls(**fields)


def dealt_out(former: int, ranks: int) -> list[list[int]]:
    """Return, for each of `ranks` ranks, the former ranks whose shards it takes over.

    Each rank takes over at most one if there are enough ranks. Otherwise it takes over several
    neighbors.
    """
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    for one in range(former):
        dealt[one if former <= ranks else one * ranks // former].append(one)
    return dealt


def forget(folder: Path, kept: Collection[int], before: int) -> None:
    """Remove the shards of commits that are older than `before` and not in `kept`."""
    for place in folder.glob(f"{_PREFIX}*"):
        number = place.name.removeprefix(_PREFIX)
        if number.isdecimal() and int(number) < before and int(number) not in kept:
            shutil.rmtree(place, ignore_errors=True)
