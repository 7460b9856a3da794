"""Checkpointing: decides when commits are written to disk, by a thread on rank 0.

HOROSCALE_CHECKPOINT_DIR=D        the folder
HOROSCALE_CHECKPOINT_EVERY=60s    a time or a number of commits; default 60s
HOROSCALE_RESUME=D                start from the newest checkpoint in a folder

horoscalerun sets these variables: --checkpoint-dir, --checkpoint-every, --resume.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from horoscale.common.environment import variable
from horoscale.common.job import current_runtime
from horoscale.elastic.checkpoints import (
    has_checkpoints,
    may_begin_anew,
    newest_number,
    read_checkpoint,
    shards_of,
    write_checkpoint,
    write_shards,
)
from horoscale.elastic.commits import Commits
from horoscale.elastic.pace import Pace
from horoscale.elastic.shard_files import ShardGroup
from horoscale.elastic.snapshot import Snapshot

# This rank's shards of some commits: their group, the rank, and the shards.
Own = Sequence[tuple[ShardGroup, int, Snapshot]]

_log = logging.getLogger("horoscale")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Checkpointing:
    """Writes the commits of one state periodically."""

    def __init__(self, folder: Path, seconds: float, commits: int) -> None:
        """Write to `folder` every `seconds`, or every `commits` commits if that is not 0."""
        self._folder = folder
        self._seconds = seconds
        self._commits = commits
        self._written_at = time.monotonic()
        self._thread: threading.Thread | None = None
        self._writing = threading.Lock()
        self._hurry = threading.Event()  # set while training does not run

    def is_due(self, number: int) -> bool:
        """Return whether a commit is due to be written. Rank 0 decides for all."""
        if current_runtime().topology.rank != 0 or (self._thread and self._thread.is_alive()):
            return False  # the disk is slower than the interval: take the next commit
        if self._commits:
            return number % self._commits == 0
        return time.monotonic() - self._written_at >= self._seconds

    def committed(self, commits: Commits, shards: Own = ()) -> None:
        """Start writing a commit that is due and that all ranks have.

        Rank 0 writes the shared values. Each rank writes its own shards, if it has any.
        """
        is_first = current_runtime().topology.rank == 0
        own = [one for one in shards if one[0].number == commits.confirmed][-1:]
        if not (is_first or own):
            return
        if self._thread is not None:  # if it is still writing, rank 0's disk is faster
            self._hurry.set()
            self._thread.join()
        self._written_at = time.monotonic()
        self._hurry.clear()
        numbers = [commits.confirmed] if is_first else []
        write = self._writer(commits, numbers, own)
        self._thread = threading.Thread(target=write, name="horoscale-checkpoint")
        self._thread.start()

    def write_now(self, commits: Commits, shards: Own = (), *, only_shards: bool = False) -> None:
        """Finish the current write, then write the last commit, because the job ends.

        With shards, write all commits that this rank has, because another rank may lack the last
        one.
        """
        self.hurry()
        numbers = [] if only_shards else [commits.confirmed]
        if shards and not only_shards:
            numbers = sorted({one[0].number for one in shards} & set(commits.held()))
        self._writer(commits, numbers, list(shards))()

    def hurry(self) -> None:
        """Finish the current write without pauses, because training has ended."""
        self._hurry.set()

    def first_number(self, number: int) -> int:
        """Return the number for the first commit of a job: `number`, or a higher one.

        It is higher than those of existing checkpoints, so that checkpoints of an earlier job are
        older.
        """
        newest = newest_number(self._folder)
        return number if number >= newest else newest + 1

    def _writer(self, commits: Commits, numbers: Sequence[int], shards: Own) -> Callable[[], None]:
        """Return a function that writes these commits. They are retained for it from now on."""
        kept = contextlib.ExitStack()
        read = [kept.enter_context(commits.reading(number)) for number in numbers]
        groups = {group.number: group for group, _, _ in shards}  # of the last view

        def write() -> None:
            """Write. A full disk does not end training, which continues in memory."""
            try:
                with kept, self._writing:
                    for group, rank, snapshot in shards:
                        write_shards(self._folder, group, rank, snapshot, self._pace(snapshot).did)
                    for number, snapshot in filter(None, read):
                        did = self._pace(snapshot).did
                        write_checkpoint(self._folder, number, snapshot, did, groups.get(number))
            except OSError as error:
                _log.error("cannot write the checkpoint in %s: %s", self._folder, error)

        return write

    def _pace(self, snapshot: Snapshot) -> Pace:
        return Pace(self._hurry, snapshot.nbytes, self._seconds / 2 or None)


def checkpointing() -> Checkpointing | None:
    """Return the checkpointing that the environment requests, or None if it names no folder.

    Raises ValueError if a variable does not parse.
    """
    _, folder = variable("CHECKPOINT_DIR")
    if not folder:
        return None
    seconds, commits = interval()
    return Checkpointing(Path(folder), seconds, commits)


def resumed() -> tuple[int, Snapshot] | None:
    """Return the number and values of the checkpoint from which this job starts.

    Returns None if the variable is not set or there is no checkpoint yet. Raises ValueError if
    there should be one.
    """
    _, given = variable("RESUME")
    if not given:
        return None
    folder = Path(given)
    _, own = variable("CHECKPOINT_DIR")
    if not has_checkpoints(folder) and may_begin_anew(folder, Path(own) if own else None):
        _log.warning("there is no checkpoint in %s yet: training starts from the beginning", folder)
        return None
    return read_checkpoint(folder)


def resumed_shards(number: int) -> tuple[str, dict[str, Any]] | None:
    """Return the location of the shards of the checkpoint from resumed(), as JSON values."""
    _, given = variable("RESUME")
    found = shards_of(Path(given or "").absolute(), number)
    return None if found is None else (str(found[0]), found[1].to_fields())


def parse_interval(text: str) -> tuple[float, int]:
    """Return the seconds between checkpoints (or 0.0) and the commits between them (or 0).

    `text` is a time, such as "60s", "5m" or "1.5h", or a number of commits. Raises ValueError.
    """
    matched = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])|(\d+)", text.strip(), re.ASCII)
    number, unit, commits = matched.groups("") if matched else ("0", "s", "")
    if float(number or commits) == 0:
        raise ValueError(
            f'{text!r} is neither a time such as "60s" or "5m" nor a number of commits'
        )
    return (0.0, int(commits)) if commits else (float(number) * _UNITS[unit], 0)


def interval() -> tuple[float, int]:
    """Return the result of parse_interval() for the variable. Raises ValueError."""
    name, value = variable("CHECKPOINT_EVERY")
    try:
        return parse_interval(value or "60s")
    except ValueError as error:
        raise ValueError(f"{name}={error}") from None
