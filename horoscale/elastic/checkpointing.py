"""Checkpointing: when commits go to disk. Rank 0 writes them, in a thread, from the commit itself.

HOROSCALE_CHECKPOINT_DIR=D        where
HOROSCALE_CHECKPOINT_EVERY=60s    or a number of commits; 60s if it is not set
HOROSCALE_RESUME=D                begin with the newest checkpoint that is there

horoscalerun sets them: --checkpoint-dir, --checkpoint-every, --resume.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from pathlib import Path

from horoscale.common.environment import variable
from horoscale.common.job import current_runtime
from horoscale.elastic.checkpoints import (
    has_checkpoints,
    may_begin_anew,
    newest_number,
    read_checkpoint,
    write_checkpoint,
)
from horoscale.elastic.commits import Commits
from horoscale.elastic.pace import Pace
from horoscale.elastic.snapshot import Snapshot

_log = logging.getLogger("horoscale")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Checkpointing:
    """Writes the commits of one state, from time to time."""

    def __init__(self, folder: Path, seconds: float, commits: int) -> None:
        """Write to `folder` when `seconds` have passed, or every so many `commits` if not 0."""
        self._folder = folder
        self._seconds = seconds
        self._commits = commits
        self._written_at = time.monotonic()
        self._thread: threading.Thread | None = None
        self._writing = threading.Lock()
        self._hurry = threading.Event()  # nothing is trained meanwhile

    def committed(self, commits: Commits) -> None:
        """Take note of a commit that all ranks have; begin to write it if it is time."""
        if current_runtime().topology.rank != 0 or not self._due(commits.confirmed):
            return
        if self._thread is not None and self._thread.is_alive():
            return  # the disk is slower: the next commit will do
        self._written_at = time.monotonic()
        self._hurry.clear()
        self._thread = threading.Thread(
            target=self._write_quietly, args=(commits,), name="horoscale-checkpoint"
        )
        self._thread.start()

    def write_now(self, commits: Commits) -> None:
        """Write the last commit, after what is being written: the job ends."""
        self.hurry()
        self._write_quietly(commits)

    def hurry(self) -> None:
        """Write without rests what is being written: nobody trains any more."""
        self._hurry.set()

    def first_number(self, number: int) -> int:
        """Return the number of the commit that a job begins with, if that is to be `number`.

        None is below the checkpoints that are there: what an earlier job has left is older.
        """
        newest = newest_number(self._folder)
        return number if number >= newest else newest + 1

    def _due(self, number: int) -> bool:
        if self._commits:
            return number % self._commits == 0
        return time.monotonic() - self._written_at >= self._seconds

    def _write_quietly(self, commits: Commits) -> None:
        """Write; that a disk is full does not end training, which goes on in memory."""
        try:
            with self._writing, commits.reading() as commit:
                if commit is not None:
                    budget_s = self._seconds / 2 or None
                    pace = Pace(self._hurry, commit[1].nbytes, budget_s)
                    write_checkpoint(self._folder, *commit, pace.did)
        except OSError as error:
            _log.error("the checkpoint in %s could not be written: %s", self._folder, error)


def checkpointing() -> Checkpointing | None:
    """Return what the variables ask for; None where they name no folder.

    Raises ValueError where one does not parse.
    """
    _, folder = variable("CHECKPOINT_DIR")
    if not folder:
        return None
    seconds, commits = _interval()
    return Checkpointing(Path(folder), seconds, commits)


def resumed() -> tuple[int, Snapshot] | None:
    """Return the checkpoint that this job is to begin with.

    None where the variable is not set, and where there is none yet. Raises ValueError where there
    should be one.
    """
    _, given = variable("RESUME")
    if not given:
        return None
    folder = Path(given)
    _, own = variable("CHECKPOINT_DIR")
    if not has_checkpoints(folder) and may_begin_anew(folder, Path(own) if own else None):
        _log.warning("there is no checkpoint in %s yet: training begins anew", folder)
        return None
    return read_checkpoint(folder)


def parse_interval(text: str) -> tuple[float, int]:
    """Return the seconds between checkpoints, or 0.0, and the commits between them, or 0.

    `text` is a time, such as "60s", "5m" or "1.5h", or a number of commits. Raises ValueError.
    """
    matched = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])|(\d+)", text.strip(), re.ASCII)
    number, unit, commits = matched.groups("") if matched else ("0", "s", "")
    if float(number or commits) == 0:
        raise ValueError(
            f'{text!r} is neither a time such as "60s" or "5m" nor a number of commits'
        )
    return (0.0, int(commits)) if commits else (float(number) * _UNITS[unit], 0)


def _interval() -> tuple[float, int]:
    name, value = variable("CHECKPOINT_EVERY")
    try:
        return parse_interval(value or "60s")
    except ValueError as error:
        raise ValueError(f"{name}={error}") from None
