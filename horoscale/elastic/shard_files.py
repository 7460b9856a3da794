"""Shards in checkpoints: a folder of each rank, beside the checkpoint that they belong to.

    DIR/commit-000000000042/                                   what all ranks have
    DIR/shards-000000000042/JOB-VIEW/RANK/manifest.json …      what a rank alone has

Ranks write theirs without waiting for each other. A checkpoint whose shards are not all there is no
whole one.
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
    """The shards of a commit: those that the ranks of one view of one job have written."""

    number: int
    job: str  # hexadecimal, of this run of the program
    view: int
    ranks: int

    def __post_init__(self) -> None:
        """Raise ValueError for what a manifest of ours does not have."""
        numbers = (self.number, self.view, self.ranks)
        if not (all(type(one) is int for one in numbers) and isinstance(self.job, str)):
            raise ValueError(f"no group of shards: {self}")
        if self.job and not self.job.isalnum():
            raise ValueError(f"no group of shards: {self}")

    def place(self, folder: Path, rank: int) -> Path:
        """Return where a rank's shards are in a folder of checkpoints."""
        return folder / f"{_PREFIX}{self.number:012}" / f"{self.job}-{self.view}" / str(rank)

    def missing(self, folder: Path) -> list[int]:
        """Return the ranks whose shards are not there."""
        return [rank for rank in range(self.ranks) if not self.place(folder, rank).is_dir()]

    def to_fields(self) -> dict[str, Any]:
        """Return values of JSON."""
        return asdict(self)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> ShardGroup:
        """Return the group that these values of JSON are. Raises TypeError or ValueError."""
        return cls(**fields)


def dealt_out(former: int, ranks: int) -> list[list[int]]:
    """Return, for each of so many ranks, the former ranks whose shards it takes over.

    Rank by rank while there are as many now; else neighbours go together.
    """
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    for one in range(former):
        dealt[one if former <= ranks else one * ranks // former].append(one)
    return dealt


def forget(folder: Path, kept: Collection[int], before: int) -> None:
    """Remove the shards of commits that are not kept, as far as they are older than one."""
    for place in folder.glob(f"{_PREFIX}*"):
        number = place.name.removeprefix(_PREFIX)
        if number.isdecimal() and int(number) < before and int(number) not in kept:
            shutil.rmtree(place, ignore_errors=True)
