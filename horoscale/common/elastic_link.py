"""A rank's connection to the driver of its elastic job.

The process inherits the connection from the driver as an open descriptor. No other process has the
descriptor, so its holder was started by the job. Both sides write lines of JSON. A thread reads the
driver's messages, so that the rank learns of an interruption without polling.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

from horoscale._core import HorovodInternalError
from horoscale.common.views import Provisional, View

VARIABLE = "HOROSCALE_ELASTIC_LINK"  # DESCRIPTOR:INODE
MAX_LINE_BYTES = 1 << 20  # fits a view of about 20,000 ranks
MAX_REPORT_BYTES = 32 << 10
_HELLO_S = 30.0
_REPORT_INTERVAL_S = 0.9  # about one a second, with tolerance for the caller's clock
_STATUS_S = 10.0
_MAX_COMMITS = 16
_MAX_CAUSE = 2000  # characters


class LeftJobError(RuntimeError):
    """This rank has left its elastic job: the driver told it to, or is gone.

    The message gives the reason. `status` is the exit status for the process: 0 if leaving is not a
    failure.
    """

    def __init__(self, why: str, status: int) -> None:
        """Store the reason and the exit status."""
        super().__init__(why)
        self.status = status

    def __reduce__(self) -> tuple[type[LeftJobError], tuple[str, int]]:
        """Pickle with both arguments."""
        return type(self), (str(self), self.status)


class ElasticLink:
    """The rank's end of the connection. Any thread may use it."""

    def __init__(self, connection: socket.socket, timeout: float = _HELLO_S) -> None:
        """Take over a connection. Wait up to `timeout` seconds for the driver's first message.

        Raises HorovodInternalError if it does not arrive or cannot be decoded.
        """
        self._connection = connection
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._view: View | None = None  # the one that includes this process
        self._newest: View | None = None
        self._provisional: Provisional | None = None
        self._greeted = False
        self._interruption = 0
        self._gone: LeftJobError | None = None
        self._reported_at = float("-inf")
        self._status: dict[str, Any] = {}
        self._statuses = 0  # number of status messages received
        thread = threading.Thread(target=self._listen, name="horoscale-driver", daemon=True)
        thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._greeted or self._gone is not None, timeout)
            if not self._greeted:
                raise HorovodInternalError(
                    f"the driver of this elastic job sent nothing for {timeout:g} s"
                    if self._gone is None
                    else str(self._gone)
                )
            self._view = self._newest

    def view(self) -> View | None:
        """Return the view that includes this process; None in a standby that has none yet."""
        with self._changed:
            return self._view

    def provisional(self) -> Provisional | None:
        """Return the provisional place of a standby; None in a process that has a view."""
        with self._changed:
            return None if self._view is not None else self._provisional

    def interruption(self) -> int:
        """Return the number of changes that the driver has requested since it sent this view.

        0 means none. Does not block. At a commit the members agree on the maximum of their numbers.
        If it is not 0, each of them calls next_view().
        """
        return self._interruption

    def next_view(self, *, commits: Sequence[int], cause: str | None) -> View:
        """Send a report, wait for the next view and return it.

        Args:
            commits: the numbers of this process' commits; empty if it has no state.
            cause: the cause of the failure here; None after an interruption and in a standby that
                is ready.

        Raises LeftJobError if the driver told this rank to leave or is gone. The driver bounds the
        wait: it ends the job if there are too few ranks for --elastic-timeout seconds.
        """
        if any(type(one) is not int or one < 0 for one in commits):
            raise ValueError(f"commits are numbers, not {commits!r}")
        with self._changed:
            number = 0 if self._view is None else self._view.number
        self._send(
            {
                "kind": "report",
                "view": number,
                "commits": sorted(set(commits))[-_MAX_COMMITS:],
                "cause": None if cause is None else cause[:_MAX_CAUSE],
            }
        )
        with self._changed:
            # In slices, so that Ctrl-C works on platforms where it does not interrupt a lock.
            while self._gone is None and (self._newest is None or self._newest.number <= number):
                self._changed.wait(1.0)
            if self._gone is not None:
                raise self._gone
            assert self._newest is not None
            self._view = self._newest
            return self._view

    def report_due(self) -> bool:
        """Return whether report() would send its values rather than drop them."""
        return time.monotonic() - self._reported_at >= _REPORT_INTERVAL_S

    def status(self) -> dict[str, Any]:
        """Return the job's status from the driver: what `horoscalerun --status --json` shows.

        Raises HorovodInternalError if no answer arrives within ten seconds.
        """
        with self._changed:
            before = self._statuses
        self._send({"kind": "status"})
        with self._changed:
            self._changed.wait_for(
                lambda: self._statuses > before or self._gone is not None, _STATUS_S
            )
            if self._statuses == before:
                raise HorovodInternalError(
                    "the driver of this elastic job did not report its status within "
                    f"{_STATUS_S:g} s"
                )
            return self._status

    def report(self, **progress: Any) -> None:
        """Report this rank's progress to the driver as JSON values, at most once a second.

        More frequent reports are dropped. `horoscalerun --status` shows them.
        """
        now = time.monotonic()
        if now - self._reported_at >= _REPORT_INTERVAL_S:
            self._reported_at = now
            self._send({"kind": "progress", "values": progress})

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _send(self, message: dict[str, Any]) -> None:
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        if len(line) > MAX_REPORT_BYTES:
            raise ValueError(f"the report has {len(line)} bytes; at most {MAX_REPORT_BYTES} fit")
        try:
            with self._sending:
                self._connection.sendall(line)
        except OSError:
            pass  # the listener also sees the end of the connection, and reports it

    def _listen(self) -> None:
        try:
            with self._connection, self._connection.makefile("rb") as lines:
                while line := lines.readline(MAX_LINE_BYTES):
                    if not line.endswith(b"\n"):
                        break
                    self._take(json.loads(line))
            why = "the driver of this elastic job is gone"
        except OSError as error:
            why = f"the driver of this elastic job is gone: {error}"
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            why = f"cannot decode a message from the driver of this elastic job: {error!r}"
        with self._changed:
            if self._gone is None:
                self._gone = LeftJobError(why, 1)
            self._changed.notify_all()

    def _take(self, message: dict[str, Any]) -> None:
        kind = message["kind"]
        with self._changed:
            if kind == "hello":
                self._provisional = Provisional.from_fields(message["provisional"])
                self._greeted = True
            elif kind == "view":
                self._newest = View.from_fields(message["view"])
                self._interruption = 0
                self._greeted = True
            elif kind == "interrupt":
                self._interruption += 1
            elif kind == "status":
                self._status = dict(message["status"])
                self._statuses += 1
            elif kind == "leave":
                self._gone = LeftJobError(str(message["why"]), int(message["status"]))
            else:
                raise ValueError(f"unknown message {kind!r}")
            self._changed.notify_all()


_lock = threading.Lock()
_link: ElasticLink | None = None


def elastic_link() -> ElasticLink | None:
    """Return the connection to the driver, or None in a process that no driver has started.

    Raises HorovodInternalError if the driver started this process but cannot be reached, for
    example because a program between them closes descriptors.
    """
    global _link
    with _lock:
        if _link is None and (given := os.environ.get(VARIABLE)) is not None:
            _link = ElasticLink(_take_descriptor(given))
        return _link


def _take_descriptor(given: str) -> socket.socket:
    """Return the socket that the variable names, unless its descriptor was reused."""
    descriptor, _, inode = given.partition(":")
    try:
        number = int(descriptor)
        if os.fstat(number).st_ino != int(inode):
            raise OSError("the descriptor now refers to another file")
        os.set_inheritable(number, False)
        return socket.socket(fileno=number)
    except (OSError, ValueError) as error:
        raise HorovodInternalError(
            f"this process belongs to an elastic job, but its link to the driver is closed "
            f"({VARIABLE}={given!r}: {error}). A program between horoscalerun and this one has "
            "closed it: in Python, pass close_fds=False to subprocess"
        ) from None


def _after_fork_in_child() -> None:
    global _link, _lock
    _lock = threading.Lock()
    _link = None
    os.environ.pop(VARIABLE, None)  # a child is not part of the job


os.register_at_fork(after_in_child=_after_fork_in_child)
