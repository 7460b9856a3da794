"""Events that scripts of elastic training record, and when they are to die."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import horoscale.numpy as hvd
from horoscale import elastic
from horoscale.elastic.membership import membership


class Journal:
    """The events of this process, as lines of JSON in a file of the folder."""

    def __init__(
        self, folder: Path, state: elastic.State, kills: Sequence[tuple[int, int]]
    ) -> None:
        """Open the journal. `kills`: by step and rank."""
        self._folder = folder
        self._state = state
        self._kills = kills
        self._log = (folder / f"log.{os.getpid()}").open("a", buffering=1)

    def note(self, event: str, **what: object) -> None:
        """Record an event."""
        view = membership().view
        line = {
            "time": time.monotonic(),
            "event": event,
            "size": hvd.size(),
            "step": self._state.step,
            "view": view.number if view else 0,
            **what,
        }
        self._log.write(json.dumps(line) + "\n")

    def dies(self) -> bool:
        """Return whether this process is to die in this step: only the first to reach it is."""
        step = self._state.step
        if (step, hvd.rank()) not in self._kills:
            return False
        try:
            (self._folder / f"killed.{step}").touch(exist_ok=False)
        except FileExistsError:
            return False
        self.note("kill")
        return True

    def end(self, bits: str) -> None:
        """Record the hash of the weights, and how this process got there."""
        done = {
            "rank": hvd.rank(),
            "size": hvd.size(),
            "bits": bits,
            "steps": self._state.step,
            "views": self._state.views,
        }
        (self._folder / f"done.{os.getpid()}").write_text(json.dumps(done))


def arguments() -> tuple[Path, int, list[tuple[int, int]]]:
    """Parse FOLDER, STEPS and the kills from the command line."""
    words = sys.argv[1:]
    kills = zip(map(int, words[2::2]), map(int, words[3::2]), strict=True)
    return Path(words[0]), int(words[1]), list(kills)
