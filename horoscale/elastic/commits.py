"""Commits: the last two commits of a state on this rank, numbered alike on all ranks.

save() writes commit n + 1 while commit n is kept; that all ranks have written it confirms it. No
rank begins n + 2 before every rank has n + 1, so that ranks which break off at any moment have one
commit in common, and two places are enough. A third one is made while another thread reads one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from horoscale.elastic.snapshot import Snapshot


class Commits:
    """What this rank can go back to."""

    def __init__(self) -> None:
        """Begin without any."""
        self.confirmed = 0  # the last number that all ranks are known to have
        self.agreed = False  # by a sync(): before it the numbers mean nothing to other ranks
        self._slots: dict[int, Snapshot] = {}
        self._read: list[Snapshot] = []  # by threads
        self._lock = threading.Lock()

    def held(self) -> list[int]:
        """Return the numbers of the commits here, in order; none before the first sync()."""
        return sorted(self._slots) if self.agreed else []

    @property
    def newest(self) -> int:
        """The number of the newest commit here, whether confirmed or not; 0: there is none."""
        return max(self._slots, default=0)

    def save(self, value: Any) -> None:
        """Write the commit after the last confirmed one, in the place of the oldest."""
        number = self.confirmed + 1
        spare = self._take_spare(number)
        spare.take(value)
        self._slots[number] = spare

    def confirm(self) -> int:
        """Take note that all ranks have written the commit that was saved last; return it."""
        if self.confirmed + 1 in self._slots:
            self.confirmed += 1
        return self.confirmed

    def latest(self) -> Snapshot | None:
        """Return the newest commit; None before the first save()."""
        return self._slots[max(self._slots)] if self._slots else None

    def go_back(self, number: int) -> Snapshot | None:
        """Forget what is newer than a commit; where it is not here, return the newest that is."""
        if number in self._slots:
            self._slots = {n: one for n, one in self._slots.items() if n <= number}
            self.confirmed = number
        return self.latest()

    def release(self) -> Snapshot:
        """Forget what this process has saved before it was in the job, which counts for nobody.

        Return it, for its memory; an empty one where there is none.
        """
        if self.agreed:
            return Snapshot()
        released, self._slots = self.latest() or Snapshot(), {}
        return released

    def replace(self, snapshot: Snapshot, number: int) -> None:
        """Begin anew with one commit that all ranks have."""
        self._slots = {number: snapshot}
        self.confirmed = number
        self.agreed = True

    @contextmanager
    def reading(self, number: int | None = None) -> Iterator[tuple[int, Snapshot] | None]:
        """Give a commit, by default the last confirmed one, to a thread.

        It is not written to meanwhile. None where it is not there.
        """
        with self._lock:
            number = self.confirmed if number is None else number  # once: it may grow meanwhile
            snapshot = self._slots.get(number)
            if snapshot is not None:
                self._read.append(snapshot)
        try:
            yield None if snapshot is None else (number, snapshot)
        finally:
            if snapshot is not None:
                with self._lock:
                    at = next(i for i, one in enumerate(self._read) if one is snapshot)
                    del self._read[at]

    def _take_spare(self, number: int) -> Snapshot:
        """Return a snapshot to write to; until it is complete it is no commit."""
        with self._lock:
            if number in self._slots:
                spare = self._slots.pop(number)
            elif len(self._slots) > 1:
                spare = self._slots.pop(min(self._slots))
            else:
                return Snapshot()
            # After a sync() snapshots share what was not sent.
            is_read = any(spare is one or spare.shares(one) for one in self._read)
            return Snapshot() if is_read else spare
