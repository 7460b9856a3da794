"""Ranks launch the device operations of overlapping sets in one order, whatever the timing.

Hypothesis draws the sets, their plans and a seed, which orders the events. A failure prints both.
HOROSCALE_PROPERTY_EXAMPLES=5000 runs more examples, drawn anew each time.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("horoscale.sim", reason="built without HOROSCALE_BUILD_SIM=1")

from horoscale.sim import LaunchOrder, LaunchStamp, StampCollector

EXAMPLES = int(os.environ.get("HOROSCALE_PROPERTY_EXAMPLES", "0"))

Entry = tuple[int, int]  # a set and the number in its plan


@dataclass
class ProcessSet:
    """A set, and the entries of its plan: True for those that NCCL launches."""

    ranks: list[int]
    plan: list[bool]
    collector: StampCollector = field(init=False)

    def __post_init__(self) -> None:
        self.collector = StampCollector(len(self.ranks))

    def stamped(self) -> list[int]:
        """The numbers, from 1, of stamped entries: not all have a stamp."""
        return [number for number, launches in enumerate(self.plan, 1) if launches]


class Rank:
    """One rank's state: the applied plan entries, received decisions, and launches."""

    def __init__(self) -> None:
        self.order = LaunchOrder()
        self.applied: dict[int, int] = {}  # by set
        self.queues: dict[int, deque[int]] = {}
        self.launched: list[Entry] = []


class Job:
    """Ranks, and the messages in flight between them: only each link is ordered."""

    def __init__(
        self, size: int, sets: list[ProcessSet], passed: set[Entry], lost: int | None, seed: int
    ) -> None:
        self.random = Random(seed)
        self.sets = sets
        self.ranks = [Rank() for _ in range(size)]
        self.passed = passed  # planned entries that are then not launched
        self.lost = lost  # a set that its members abandon at different times
        self.links: dict[tuple[int, int], deque[Callable[[], None]]] = {}

    def run(self) -> None:
        """Run until nothing can happen any more."""
        while events := self._events():
            self.random.choice(events)()

    def _events(self) -> list[Callable[[], None]]:
        events: list[Callable[[], None]] = []
        events += [lambda key=key: self._deliver(key) for key, link in self.links.items() if link]
        for number, process_set in enumerate(self.sets):
            for rank in process_set.ranks:
                here = self.ranks[rank]
                if 0 <= here.applied.get(number, 0) < len(process_set.stamped()):
                    events.append(lambda n=number, r=rank: self._apply(n, r))
                queue = here.queues.get(number)
                if queue and (
                    (number, queue[0]) in self.passed or here.order.is_next(number, queue[0])
                ):
                    events.append(lambda n=number, r=rank: self._launch(n, r))
                if number == self.lost and here.applied.get(number, 0) >= 0:
                    events.append(lambda r=rank: self._give_up(r))
        return events

    def _deliver(self, key: tuple[int, int]) -> None:
        self.links[key].popleft()()

    def _send(self, source: int, target: int, message: Callable[[], None]) -> None:
        self.links.setdefault((source, target), deque()).append(message)

    def _apply(self, number: int, rank: int) -> None:
        process_set, here = self.sets[number], self.ranks[rank]
        index = here.applied.get(number, 0)
        here.applied[number] = index + 1
        sequence = process_set.stamped()[index]
        proposal = LaunchStamp(sequence, here.order.propose(number, sequence))
        here.queues.setdefault(number, deque()).append(sequence)
        member = process_set.ranks.index(rank)
        self._send(rank, process_set.ranks[0], lambda: self._collect(number, member, proposal))

    def _collect(self, number: int, member: int, proposal: LaunchStamp) -> None:
        process_set = self.sets[number]
        coordinator = process_set.ranks[0]
        if self.ranks[coordinator].applied.get(number, 0) < 0:
            return
        decision = process_set.collector.add(member, proposal)
        if decision is None:
            return
        for rank in process_set.ranks:
            self._send(coordinator, rank, lambda r=rank: self._agree(number, r, decision))

    def _agree(self, number: int, rank: int, decision: LaunchStamp) -> None:
        if self.ranks[rank].applied[number] >= 0:
            self.ranks[rank].order.agree(number, decision)

    def _launch(self, number: int, rank: int) -> None:
        here = self.ranks[rank]
        sequence = here.queues[number].popleft()
        here.order.remove(number, sequence)
        if (number, sequence) not in self.passed:
            here.launched.append((number, sequence))

    def _give_up(self, rank: int) -> None:
        assert self.lost is not None
        here = self.ranks[rank]
        here.applied[self.lost] = -1
        here.queues.pop(self.lost, None)
        here.order.remove_set(self.lost)


def left_on_devices(job: Job) -> list[Entry]:
    """Launches that deadlock if a device runs one kernel at a time and kernels wait for peers."""
    queues = [deque(entry for entry in rank.launched if entry[0] != job.lost) for rank in job.ranks]
    ends = True
    while ends:
        ends = False
        for entry in {queue[0] for queue in queues if queue}:
            own = [queues[rank] for rank in job.sets[entry[0]].ranks]
            if all(queue and queue[0] == entry for queue in own):
                for queue in own:
                    queue.popleft()
                ends = True
    return [entry for queue in queues for entry in queue]


@st.composite
def process_sets(draw: st.DrawFn, size: int) -> list[ProcessSet]:
    members = st.sets(st.integers(0, size - 1), min_size=1)
    drawn = draw(st.lists(members, min_size=1, max_size=5, unique_by=lambda s: tuple(sorted(s))))
    plans = st.lists(st.sampled_from([True, True, False]), max_size=6)
    return [ProcessSet(sorted(ranks), draw(plans)) for ranks in drawn]


@settings(
    max_examples=EXAMPLES or 200,
    derandomize=not EXAMPLES,
    database=None,
    deadline=None,
    print_blob=True,
)
@given(data=st.data(), size=st.integers(1, 5), seed=st.integers(0, 2**32 - 1))
def test_overlapping_sets_are_launched_in_one_order(
    data: st.DataObject, size: int, seed: int
) -> None:
    sets = data.draw(process_sets(size), "sets")
    entries = [(n, sequence) for n, one in enumerate(sets) for sequence in one.stamped()]
    passed = data.draw(st.sets(st.sampled_from(entries)), "passed") if entries else set()
    lost = data.draw(st.none() | st.integers(0, len(sets) - 1), "lost")
    job = Job(size, sets, passed, lost, seed)
    job.run()
    for number, rank in enumerate(job.ranks):
        kept = [e for e in entries if e not in passed and e[0] != lost]
        own = {entry for entry in kept if number in sets[entry[0]].ranks}
        assert {entry for entry in rank.launched if entry[0] != lost} == own
        for other in job.ranks[:number]:
            common = set(rank.launched) & set(other.launched)
            assert [e for e in rank.launched if e in common] == [
                e for e in other.launched if e in common
            ]
    assert left_on_devices(job) == []
