"""An elastic job under test: elastic_rank.py under horoscalerun, and the events of its ranks."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launcher_process import PATIENCE_S, Launcher

RANK = Path(__file__).with_name("elastic_rank.py")
Event = dict[str, Any]


class ElasticLaunch:
    """A running job. As a context it leaves no process behind."""

    def __init__(self, folder: Path, *flags: object, **options: Any) -> None:
        """Start it with the launcher's options."""
        self.folder = folder
        self.launcher = Launcher(*flags, sys.executable, RANK, 10, folder, **options)

    def __enter__(self) -> ElasticLaunch:
        return self

    def __exit__(self, *arguments: object) -> None:
        self.launcher.__exit__(*arguments)

    def events(self) -> list[Event]:
        """The events of all processes so far, each in its order."""
        found = []
        for file in self.folder.glob("rank-*"):
            lines = file.read_text().split("\n")[:-1]
            found += [json.loads(line) for line in lines]
        return sorted(found, key=lambda event: float(event["time"]))

    def wait_for(self, met: Callable[[Event], bool], count: int = 1) -> list[Event]:
        """The first `count` events that meet a condition, once there are that many."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = [event for event in self.events() if met(event)]
            if len(found) >= count:
                return found
            assert self.launcher.process.poll() is None, self.launcher.process.communicate()
            assert time.monotonic() < deadline, self.events()
            time.sleep(0.01)

    def steps(self, view: int, count: int) -> list[Event]:
        """Wait until this many ranks have completed a step in a view."""
        return self.wait_for(lambda e: e["event"] == "step" and e["number"] == view, count)

    def pid_of(self, rank: int, view: int) -> int:
        """The process that has a rank in a view."""
        given = ("view", "given")
        (event,) = self.wait_for(
            lambda e: e["event"] in given and e["number"] == view and e["rank"] == rank
        )
        return int(event["pid"])

    def kill(self, rank: int, view: int, signum: int = signal.SIGKILL) -> float:
        """Signal a rank; return the time."""
        pid = self.pid_of(rank, view)
        now = time.monotonic()
        os.kill(pid, signum)
        return now

    def hold_standbys(self) -> None:
        """Keep standbys from joining until let_standbys_join()."""
        (self.folder / "hold").touch()

    def let_standbys_join(self) -> None:
        """Undo hold_standbys()."""
        (self.folder / "hold").unlink()

    def end(self) -> tuple[int, str]:
        """Let the ranks finish; return the launcher's status and output. Nothing may be left."""
        (self.folder / "finish").touch()
        return self.ended()

    def ended(self) -> tuple[int, str]:
        """Wait for a job that ends by itself."""
        _, errors = self.launcher.process.communicate(timeout=PATIENCE_S)
        assert self.launcher.processes() == []
        return self.launcher.process.returncode, errors.decode()
