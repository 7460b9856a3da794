"""A link whose driver is the test: it issues prepared views."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from horoscale.common.elastic_link import LeftJobError
from horoscale.common.views import View, views_of


def view_of_one(number: int, **fields: Any) -> View:
    """A view with one rank."""
    values = {"source": 0, "commit": 0, "skip_sync": False, **fields}
    return views_of(number, [f"here:0:{values.pop('incarnation', 0)}"], [0], **values)[0]


class PreparedLink:
    """Issues the prepared views in order, and records what was reported."""

    def __init__(self, *views: View | LeftJobError | None) -> None:
        self._view, *self._following = views
        self.reports: list[tuple[list[int], str | None]] = []
        self.asked = 0
        self.progress: list[dict[str, Any]] = []

    def view(self) -> View | None:
        return self._view

    def interruption(self) -> int:
        return self.asked

    def next_view(self, *, commits: Sequence[int], cause: str | None) -> View:
        self.reports.append((list(commits), cause))
        following = self._following.pop(0)
        if isinstance(following, LeftJobError):
            raise following
        assert following is not None
        self._view = following
        self.asked = 0
        return following

    def report_due(self) -> bool:
        # Only commits are recorded; the reports of each second come at any time.
        return threading.current_thread() is threading.main_thread()

    def report(self, **progress: Any) -> None:
        self.progress.append(progress)
