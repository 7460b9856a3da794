"""Commits: the last two commits of a state on this rank, numbered equally on all ranks.

save() writes commit n + 1 while commit n is kept. It is confirmed when all ranks have written it.
No rank begins n + 2 before every rank has n + 1. Therefore ranks that are interrupted at any time
have one commit in common, and two buffers are enough. A third is used while a thread reads one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from horoscale.elastic.snapshot import Snapshot


class Commits:
    """The commits that this rank can restore."""

    def __init__(self) -> None:
        """Start without commits."""
        self.confirmed = 0  # the last number known to exist on all ranks
        self.agreed = False  # by a sync(), before which numbers mean nothing to others
        self._slots: dict[int, Snapshot] = {}
        self._read: list[Snapshot] = []  # by threads
        self._lock = threading.Lock()

    def held(self) -> list[int]:
        """Return the numbers of this rank's commits in order; empty before the first sync()."""
        return sorted(self._slots) if self.agreed else []

    @property
    def newest(self) -> int:
        """The number of this rank's newest commit, confirmed or not; 0 if there is none."""
        return max(self._slots, default=0)

    def save(self, value: Any) -> None:
        """Write the commit after the last confirmed one into the oldest buffer."""
        number = self.confirmed + 1
        spare = self._take_spare(number)
        spare.take(value)
        self._slots[number] = spare

    def confirm(self) -> int:
        """Record that all ranks have written the last saved commit, and return its number."""
        if self.confirmed + 1 in self._slots:
            self.confirmed += 1
        return self.confirmed

    def latest(self) -> Snapshot | None:
        """Return the newest commit, or None before the first save()."""
        return self._slots[max(self._slots)] if self._slots else None

    def go_back(self, number: int) -> Snapshot | None:
        """Drop commits newer than `number`. Return that commit, or else the newest one left."""
        if number in self._slots:
            self._slots = {n: one for n, one in self._slots.items() if n <= number}
            self.confirmed = number
        return self.latest()

    def release(self) -> Snapshot:
        """Drop the commit that this process saved before it joined the job.

        Returns its snapshot so that the memory can be reused, or an empty snapshot.
        """
        if self.agreed:
            return Snapshot()
        released, self._slots = self.latest() or Snapshot(), {}
        return released

    def replace(self, snapshot: Snapshot, number: int) -> None:
        """Start over with one commit that all ranks have."""
        self._slots = {number: snapshot}
        self.confirmed = number
        self.agreed = True

    @contextmanager
    def reading(self, number: int | None = None) -> Iterator[tuple[int, Snapshot] | None]:
        """Yield a commit, by default the last confirmed one, to a thread.

        It is not overwritten within the block. Yields None if this rank does not have it.
        """
        with self._lock:
            number = self.confirmed if number is None else number  # read once, because it may grow
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
        """Return a snapshot to write to. It becomes a commit when it is complete."""
        with self._lock:
            if number in self._slots:
                spare = self._slots.pop(number)
            elif len(self._slots) > 1:
                spare = self._slots.pop(min(self._slots))
            else:
                return Snapshot()
            # After a sync(), snapshots share the blocks that were not sent.
            is_read = any(spare is one or spare.shares(one) for one in self._read)
            return Snapshot() if is_read else spare
