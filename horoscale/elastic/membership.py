"""Membership: this process' current view of the job, and the transition to the next one.

The launcher of an elastic job decides on views, and each rank has a link to it. Ranks started by
mpirun or torchrun have no link, and their membership never changes.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

from horoscale.common import job, surviving_sets, telemetry
from horoscale.common.activity import Activity
from horoscale.common.elastic_link import ElasticLink, elastic_link
from horoscale.common.exceptions import HorovodInternalError, RankFailedError
from horoscale.common.job import current_runtime
from horoscale.common.views import View
from horoscale.driver.membership import Part
from horoscale.driver.progress import Progress


class Membership:
    """This process' view of the job."""

    def __init__(self, link: ElasticLink | None) -> None:
        """Start in the link's view. A standby has none."""
        self._link = link
        self._view = link.view() if link is not None else None
        self._activity = Activity()
        self._reporting = threading.Lock()

    @property
    def elastic(self) -> bool:
        """Whether the ranks of this job can change."""
        return self._link is not None

    @property
    def standby(self) -> bool:
        """Whether this process is waiting for its first view."""
        return self._link is not None and self._view is None

    @property
    def view(self) -> View | None:
        """The view; None in a standby and in a job whose ranks do not change."""
        return self._view

    @property
    def source(self) -> int:
        """The rank whose state the others receive in sync()."""
        return 0 if self._view is None else self._view.source

    @property
    def begins(self) -> bool:
        """Whether no rank has a commit: the job begins, or failed before its first sync()."""
        return self._view is None or self._view.commit == 0

    @property
    def shares_commit(self) -> bool:
        """Whether all ranks of the view, except those that have joined, are at the same commit."""
        return self._view is not None and self._view.commit > 0

    @property
    def joined(self) -> bool:
        """Whether this rank lacks the commit of the view."""
        return self._view is not None and self._view.previous[self._view.rank] is None

    def interruption(self) -> int:
        """Return the number of changes requested since this view began."""
        return 0 if self._link is None else self._link.interruption()

    def report(self, progress: dict[str, int]) -> None:
        """Report this rank's progress to the launcher, at most once a second. Thread-safe."""
        telemetry.set_counters(progress)
        if self._link is None or not self._link.report_due():
            return
        if self._reporting.acquire(blocking=False):  # else another thread is reporting
            try:
                self._link.report(**progress, **self._activity.read())
            finally:
                self._reporting.release()

    def status(self) -> dict[str, Any]:
        """Return the job's status; see horoscale.elastic.status()."""
        if self._link is not None:
            return self._link.status()
        topology, now = current_runtime().topology, time.monotonic()
        progress = Progress(now)
        with self._reporting:
            progress.take(self._activity.read(), now)
        own = {
            "process": topology.rank,
            "host": os.environ.get("HOROSCALE_HOSTNAME") or socket.gethostname(),
            "slot": topology.local_rank,
            "part": Part.MEMBER.value,
            "rank": topology.rank,
            **progress.describe(now),
        }
        return {"view": 0, "size": topology.size, "resets": 0, "processes": [own], "findings": []}

    def next_view(self, commits: Sequence[int], error: Exception | None) -> View | None:
        """Leave the job and wait for the next view; return None if the job's ranks do not change.

        `error` is the cause in case of a failure. Raises LeftJobError if this rank has no place in
        the next view.
        """
        surviving_sets.keep(self._view)
        error = _leave(error)
        if self._link is None:
            return None
        cause = None if error is None else f"{type(error).__name__}: {error}"
        return self._link.next_view(commits=commits, cause=cause)

    def enter(self, view: View | None) -> None:
        """Join the job of a view, with the process sets of the previous one. Collective."""
        self._view = view
        surviving_sets.enter_view(view)


def _leave(error: Exception | None) -> Exception | None:
    """End the runtime. Return the earlier failure, or one raised here."""
    own = error is not None and not isinstance(error, RankFailedError)
    try:
        # A rank that detected the death of another does not report itself as failed.
        job.stop(failure=f"{type(error).__name__}: {error}"[:300] if own else None)
    except HorovodInternalError as late:
        return error or late
    return error


_membership: Membership | None = None


def membership() -> Membership:
    """Return this process' membership."""
    global _membership
    if _membership is None:
        _membership = Membership(elastic_link())
    return _membership


def use_link(link: ElasticLink | None) -> None:
    """Replace the launcher's link, for tests."""
    global _membership
    _membership = Membership(link)
