"""Reports to the launcher of a watched job every second (horoscalerun --status-port).

The process inherits one end of a socket pair from its host's supervisor, as ranks of elastic jobs
inherit their link to the driver. A Python thread writes lines of JSON to it. Each line contains the
values that changed since the previous line. The runtime is involved only when the thread reads its
metrics, once a second.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from horoscale import _journal
from horoscale._core import Runtime
from horoscale.common import job
from horoscale.common.activity import Activity
from horoscale.common.elastic_link import elastic_link
from horoscale.common.set_totals import SetTotals

VARIABLE = "HOROSCALE_STATUS_LINK"  # DESCRIPTOR:INODE
INTERVAL_S = 1.0
MAX_LINE_BYTES = 32 << 10
_SEND_S = 5.0  # bounds the wait for a stopped supervisor at process exit
_MOST_LINKS = 16
_MOST_LATE = 16
_MOST_NOTES = 16
_MOST_ENCODING_SETS = 8

_counters: dict[str, int] = {}


def set_counters(counters: Mapping[str, int]) -> None:
    """Set the script's progress counters: "commit", "epoch", "step", "batch"."""
    global _counters
    _counters = dict(counters)


class Telemetry:
    """The reporting thread. It ends with the process or when the supervisor exits."""

    def __init__(self, connection: socket.socket) -> None:
        """Send a first report, then one every second."""
        self.process = os.getpid()
        self._connection = connection
        self._connection.settimeout(_SEND_S)
        self._activity = Activity()
        self._told: dict[str, Any] = {}
        self._noted = 0
        self._encoding_sets: list[str] = []
        self._totals = SetTotals()
        self._telling = threading.Lock()
        self._due = threading.Event()
        threading.Thread(target=self._run, name="horoscale-telemetry", daemon=True).start()

    def hasten(self) -> None:
        """Send a report now."""
        self._due.set()

    def tell(self, values: dict[str, Any]) -> None:
        """Write a line with the changed values and the new notes."""
        with self._telling:
            changed = {
                name: value
                for name, value in values.items()
                if name not in self._told or self._told[name] != value
            }
            notes = _journal.since(self._noted)[-_MOST_NOTES:]
            if notes:
                changed["notes"] = [[one.kind, one.text] for one in notes]
            if not changed:
                return
            line = json.dumps(changed, separators=(",", ":")).encode() + b"\n"
            if len(line) <= MAX_LINE_BYTES:
                self._connection.sendall(line)
            self._told.update(values)
            self._noted = notes[-1].number if notes else self._noted

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # the supervisor is gone, which ends this process
            while True:
                self._due.clear()
                self.tell(self.read())
                self._due.wait(INTERVAL_S)

    def end_job(self) -> None:
        """Forget the counters of a job that has ended."""
        self._totals.reset()

    def read(self) -> dict[str, Any]:
        """Return all values to report; between two jobs, the script's counters only."""
        activity, metrics = self._activity.read_with_metrics()
        at = round(time.monotonic(), 3)
        if not metrics:
            return {**_counters, "at": at, "view": 0, "sets": []}  # nothing is pending
        steps = metrics["steps"]
        links = sorted(metrics["link_bytes_sent"].items(), key=lambda item: -item[1])
        late = metrics["process_sets"]["0"]["late_ranks"]
        latest = sorted(late, key=lambda one: -late[one]["seconds"])[:_MOST_LATE]
        return {
            **_counters,
            **activity,
            "at": at,
            "view": _view(),
            "steps": [
                steps["count"],
                round(steps["seconds"], 6),
                round(steps["exposed_seconds"], 6),
                round(steps["waiting_seconds"], 6),
            ],
            **self._totals.over(metrics["process_sets"]),
            "shared_bytes": metrics["data_bytes_sent"] - metrics["network_bytes_sent"],
            "network_bytes": metrics["network_bytes_sent"],
            "links": dict(links[:_MOST_LINKS]),
            "late": {
                one: [late[one]["operations"], round(late[one]["seconds"], 6)] for one in latest
            },
            **self._encodings(metrics["process_sets"]),
        }

    def _encodings(self, sets: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return the use of encodings in the first existing process sets that have any.

        "encodings" has the bytes before and after each lossy encoding, and the relative error.
        "adaptive" has the number of tensors for each encoding that was chosen last.
        """
        used = [key for key, one in sets.items() if one["encodings"] or one["adaptive"]]
        known = [key for key in self._encoding_sets if key in used]
        new = [key for key in used if key not in known]
        self._encoding_sets = [*known, *new][:_MOST_ENCODING_SETS]
        return {
            "encodings": {
                key: {
                    name: [one["bytes_before"], one["bytes_after"], round(one["relative_error"], 6)]
                    for name, one in sets[key]["encodings"].items()
                }
                for key in self._encoding_sets
            },
            "adaptive": {
                key: Counter(_kind(one["encoding"]) for one in sets[key]["adaptive"].values())
                for key in self._encoding_sets
                if sets[key]["adaptive"]
            },
        }


def _kind(encoding: str) -> str:
    """Return "topk" for "topk(41 of 4096)"."""
    return encoding.partition("(")[0]


def _view() -> int:
    """Return the number of this rank's view, or 0 in a job that is not elastic."""
    link = elastic_link()
    view = None if link is None else link.view()
    return 0 if view is None else view.number


_telemetry: Telemetry | None = None


def _begin(_: Runtime) -> None:
    """Handle the start of a job. The first job starts the reporting thread."""
    global _telemetry
    if _telemetry is None and (given := os.environ.get(VARIABLE)) is not None:
        connection = _inherited(given)
        if connection is None:
            return
        _telemetry = Telemetry(connection)
    if _telemetry is not None:
        _telemetry.hasten()


def _end() -> None:
    """Send the last notes, because the process may exit."""
    # Also called in a forked child before it drops this object. It must not take the lock, because
    # the thread that may have held it does not exist in the child.
    if _telemetry is not None and _telemetry.process == os.getpid():
        with contextlib.suppress(OSError):
            _telemetry.tell({})
        _telemetry.end_job()


def _inherited(given: str) -> socket.socket | None:
    """Return the socket that the variable names, unless its descriptor was reused."""
    descriptor, _, inode = given.partition(":")
    try:
        number = int(descriptor)
        if os.fstat(number).st_ino != int(inode):
            return None
        os.set_inheritable(number, False)
        return socket.socket(fileno=number)
    except (OSError, ValueError):  # closed by a program between the supervisor and this one
        return None


def _after_fork_in_child() -> None:
    global _telemetry
    _telemetry = None
    os.environ.pop(VARIABLE, None)  # a child is not part of the job


def watch() -> None:
    """Report this process' jobs if there is a supervisor. Called once."""
    if VARIABLE in os.environ:
        job.at_start(_begin)
        job.at_end(_end)
        os.register_at_fork(after_in_child=_after_fork_in_child)
