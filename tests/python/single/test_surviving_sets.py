"""Process sets across changes of ranks, in one process without peers."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from horoscale._core import Runtime
from horoscale.common import job, process_sets, surviving_sets
from horoscale.common.process_sets import ProcessSet
from horoscale.common.surviving_sets import OnLoss, surviving
from horoscale.common.views import View, views_of


class FakeRuntime(Runtime):
    """Registers sets without any peers."""

    def __init__(self, size: int) -> None:
        self.topology = cast("Any", SimpleNamespace(rank=0, size=size))
        self.sets = {0: list(range(size))}

    def process_sets(self) -> dict[int, list[int]]:
        return self.sets

    def enqueue(self, *_: object, ranks: Any = (), **__: object) -> Any:
        set_id = len(self.sets)
        self.sets[set_id] = list(ranks)
        return SimpleNamespace(wait=lambda: None, result=lambda: set_id)


class Job:
    """Moves from view to view; members are slots of one host, by incarnation."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._number = 0
        self._view: View | None = None
        patch.setattr(surviving_sets, "_sets", surviving_sets._Sets())
        patch.setattr(surviving_sets, "broadcast_bytes", lambda _, own, *__: own)
        patch.setattr(job, "start", lambda view: self._begin(view))
        patch.setattr(job, "_runtime", None)

    def _begin(self, view: View) -> FakeRuntime:
        runtime = FakeRuntime(view.size)
        self._patch.setattr(job, "_runtime", runtime)
        return runtime

    def enter(self, members: dict[int, int]) -> None:
        surviving_sets.keep(self._view)
        process_sets._forget()  # like the end of a job
        self._number += 1
        identities = [f"here:{slot}:{incarnation}" for slot, incarnation in members.items()]
        self._view = views_of(
            self._number,
            identities,
            [None] * len(members),
            source=0,
            commit=0,
            skip_sync=False,
        )[0]
        surviving_sets.enter_view(self._view)

    def add(self, process_set: ProcessSet) -> None:
        runtime = job.current_runtime()
        assert process_set.ranks is not None
        process_sets.register(
            runtime, process_set.ranks, process_sets._flags_of(process_set), process_set
        )


@pytest.fixture
def changing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    yield Job(monkeypatch)
    process_sets._forget()


WHOLE, WITHOUT, REPLACED = {0: 0, 1: 1, 2: 2}, {0: 0, 1: 1}, {0: 0, 1: 1, 2: 7}


@pytest.mark.parametrize(
    ("on_loss", "without", "replaced"),
    [("shrink", [0], [0, 2]), ("drop", None, None), ("wait", None, [0, 2])],
)
def test_a_member_is_lost_and_replaced(
    changing: Job, on_loss: OnLoss, without: list[int] | None, replaced: list[int] | None
) -> None:
    before, own, after = surviving([0, 1]), surviving([0, 2], on_loss=on_loss), surviving([1])
    changing.enter(WHOLE)
    for one in (before, own, after):
        changing.add(one)
    for members, expected in ((WITHOUT, without), (REPLACED, replaced), (REPLACED, replaced)):
        changing.enter(members)
        sets = job.current_runtime().process_sets()
        registered = [[0, 1], *([] if expected is None else [expected]), [1]]
        assert [sets[one] for one in sorted(sets)[1:]] == registered
        assert (own.process_set_id is not None) == (expected is not None)
        if own.process_set_id is not None:
            assert (own.ranks, sets[own.process_set_id]) == (expected, expected)
        assert [before.process_set_id, after.process_set_id] == [1, len(sets) - 1]


@pytest.mark.parametrize("on_loss", ["shrink", "drop", "wait"])
def test_a_replacement_in_the_same_view_loses_nothing(changing: Job, on_loss: OnLoss) -> None:
    own = surviving([0, 2], on_loss=on_loss)
    changing.enter(WHOLE)
    changing.add(own)
    changing.enter(REPLACED)
    assert (own.process_set_id, own.ranks) == (1, [0, 2])


def test_members_keep_their_slots_when_ranks_move(changing: Job) -> None:
    own = surviving([1, 2], on_loss="wait")
    changing.enter(WHOLE)
    changing.add(own)
    changing.enter({1: 1, 2: 2})
    assert (own.process_set_id, own.ranks) == (1, [0, 1])


def test_a_rule_is_asked_again(changing: Job) -> None:
    last = surviving(lambda rank, size: rank == size - 1)
    changing.enter(WHOLE)
    last.ranks = [2]
    changing.add(last)
    changing.enter(WITHOUT)
    assert last.ranks == [1]
    changing.enter(REPLACED)
    assert last.ranks == [2]


def test_what_can_not_be() -> None:
    with pytest.raises(ValueError, match="on_loss='give up' must be"):
        surviving([0], on_loss=cast("Any", "give up"))
