"""run() on one rank, with a driver that the test controls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.elastic_links import PreparedLink, view_of_one

import horoscale.torch as hvd
from horoscale.common.elastic_link import LeftJobError
from horoscale.elastic import membership
from horoscale.elastic import state as state_module
from horoscale.elastic.checkpoints import write_checkpoint, write_shards
from horoscale.elastic.shard_files import ShardGroup
from horoscale.elastic.shards import ShardKeeper
from horoscale.elastic.snapshot import Snapshot


@pytest.fixture
def link() -> Iterator[PreparedLink]:
    prepared = PreparedLink(*(view_of_one(number) for number in range(1, 6)))
    membership.use_link(prepared)
    hvd.init()
    yield prepared
    hvd.shutdown()
    membership.use_link(None)


def test_the_value_and_the_arguments(link: PreparedLink) -> None:
    @hvd.elastic.run
    def train(state: Any, data: int, *, factor: int) -> int:
        """Its own words."""
        return (state.epoch + data) * factor

    assert train(hvd.elastic.ObjectState(epoch=2), 3, factor=4) == 20
    assert (train.__name__, train.__doc__) == ("train", "Its own words.")
    assert link.reports == []


def test_a_failure_goes_back_to_the_last_commit(link: PreparedLink) -> None:
    state = hvd.elastic.ObjectState(epoch=0, seen=[])
    calls = []

    @hvd.elastic.run
    def train(state: Any) -> str:
        calls.append(state.epoch)
        state.epoch += 1
        state.seen.append(state.epoch)
        state.commit()
        state.epoch += 10
        if len(calls) < 3:
            raise hvd.HorovodInternalError("what a script raises itself")
        return "done"

    assert train(state) == "done"
    assert calls == [0, 1, 2]
    assert state.seen == [1, 2, 3]
    cause = "HorovodInternalError: what a script raises itself"
    assert link.reports == [([1, 2], cause), ([2, 3], cause)]


def test_an_interrupt_loses_nothing(link: PreparedLink) -> None:
    state = hvd.elastic.ObjectState(batch=0)
    calls = []

    @hvd.elastic.run
    def train(state: Any) -> int:
        calls.append(state.batch)
        while state.batch < 6:
            state.batch += 1
            if state.batch == 2:
                link.asked = 1
            if state.batch == 4:
                state.on_hosts_updated(1.5, 1)
            if state.batch % 2:
                state.check_host_updates()
            else:
                state.commit()
        return state.batch

    assert train(state) == 6
    assert calls == [0, 2, 4]
    assert [cause for _, cause in link.reports] == [None, None]


def test_a_change_found_without_a_commit_saves_first(link: PreparedLink) -> None:
    state = hvd.elastic.ObjectState(batch=0)

    @hvd.elastic.run
    def train(state: Any) -> int:
        if state.batch == 7:
            return 7
        state.batch = 7
        link.asked = 1
        state.check_host_updates()
        raise AssertionError("not interrupted")

    assert train(state) == 7


def test_commits_tell_how_far_training_is(link: PreparedLink) -> None:
    state = hvd.elastic.ObjectState(epoch=3, step=0, name="digits", batch="not a number")

    @hvd.elastic.run
    def train(state: Any) -> None:
        for _ in range(2):
            state.step += 1
            state.commit()
        state.check_host_updates()

    train(state)
    known = [
        (one["epoch"], one["step"], one["commit"] - link.progress[0]["commit"])
        for one in link.progress
    ]
    assert known == [(3, 1, 0), (3, 2, 1), (3, 2, 1)]
    activity = {"computing_seconds", "waiting_seconds", "sets"}
    assert all(one.keys() == {"epoch", "step", "commit"} | activity for one in link.progress)


def test_skip_sync_is_the_drivers_word() -> None:
    link = PreparedLink(view_of_one(1), view_of_one(2, skip_sync=True), view_of_one(3))
    membership.use_link(link)
    hvd.init()
    syncs = []

    class State(hvd.elastic.ObjectState):
        def sync(self) -> None:
            syncs.append(link.view().number)
            super().sync()

    @hvd.elastic.run
    def train(state: Any) -> None:
        if link.view().number < 3:
            raise hvd.HostsUpdatedInterrupt(skip_sync=link.view().number == 2)

    train(State(epoch=0))
    assert syncs == [1, 3]
    hvd.shutdown()
    membership.use_link(None)


def test_callbacks_come_before_sync_and_after_init(link: PreparedLink) -> None:
    order = []

    class State(hvd.elastic.ObjectState):
        def sync(self) -> None:
            order.append("sync")
            super().sync()

        def reset(self) -> None:
            order.append("reset")

    state = State(epoch=0)
    state.register_reset_callbacks([lambda: order.append("first"), lambda: order.append("second")])
    state.register_reset_callbacks([lambda: order.append(str(hvd.size()))])

    @hvd.elastic.run
    def train(state: Any) -> None:
        order.append("train")
        if len(order) < 3:
            raise hvd.HorovodInternalError("once")

    train(state)
    assert order == ["sync", "train", "reset", "first", "second", "1", "sync", "train"]


def test_what_a_callback_changes_is_synchronized(link: PreparedLink) -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    state = hvd.elastic.TorchState(model, optimizer, step=0)
    state.register_reset_callbacks([lambda: optimizer.param_groups[0].update(lr=0.25)])

    @hvd.elastic.run
    def train(state: Any) -> float:
        state.step += 1
        if state.step == 1:
            state.commit()
            raise hvd.HorovodInternalError("once")
        return optimizer.param_groups[0]["lr"]

    assert train(state) == 0.25
    assert state.step == 2


@pytest.mark.parametrize("changes", [False, True], ids=["as it was", "a callback changes it"])
def test_a_commit_that_all_have_is_not_sent(changes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    membership.use_link(PreparedLink(view_of_one(1), view_of_one(2, commit=2)))
    sent = []
    send = state_module.send_snapshot
    monkeypatch.setattr(
        state_module, "send_snapshot", lambda *given: sent.append(given[1]) or send(*given)
    )
    hvd.init()
    model = torch.nn.Linear(2, 1, bias=False)
    state = hvd.elastic.TorchState(model, step=0)
    if changes:
        state.register_reset_callbacks([lambda: None])
    calls = []

    @hvd.elastic.run
    def train(state: Any) -> None:
        calls.append((state.step, model.weight.tolist()))
        torch.nn.init.constant_(model.weight, 5.0)
        state.step += 1
        state.commit()
        torch.nn.init.constant_(model.weight, 7.0)
        if len(calls) == 1:
            raise hvd.HorovodInternalError("after the commit")

    try:
        train(state)
    finally:
        hvd.shutdown()
        membership.use_link(None)
    assert calls[1] == (1, [[5.0, 5.0]])
    assert len(sent) == (2 if changes else 1)  # at first nobody knows what others have


def test_a_change_after_one_without_sync_loses_nothing() -> None:
    link = PreparedLink(view_of_one(1), view_of_one(2, skip_sync=True), view_of_one(3))
    membership.use_link(link)
    hvd.init()

    @hvd.elastic.run
    def train(state: Any) -> int:
        number = link.view().number
        state.step += 1
        if number < 3:
            link.asked = 1
            state.check_host_updates()
        return state.step

    assert train(hvd.elastic.ObjectState(step=0)) == 3
    hvd.shutdown()
    membership.use_link(None)


@pytest.mark.parametrize("error", [hvd.MismatchError("shapes"), ValueError("wrong")])
def test_mistakes_leave(link: PreparedLink, error: Exception) -> None:
    @hvd.elastic.run
    def train(state: Any) -> None:
        raise error

    with pytest.raises(type(error), match=str(error)):
        train(hvd.elastic.ObjectState())
    assert link.reports == []


@pytest.mark.parametrize("status", [0, 3])
def test_a_rank_that_has_no_place_exits(status: int, capsys: pytest.CaptureFixture[str]) -> None:
    membership.use_link(PreparedLink(view_of_one(1), LeftJobError("host x is drained", status)))
    hvd.init()

    @hvd.elastic.run
    def train(state: Any) -> None:
        raise hvd.HorovodInternalError("once")

    with pytest.raises(SystemExit) as ended:
        train(hvd.elastic.ObjectState())
    assert ended.value.code == status
    assert "host x is drained" in capsys.readouterr().err
    membership.use_link(None)


def test_without_a_driver_a_failure_is_raised() -> None:
    membership.use_link(None)
    hvd.init()
    calls = []

    @hvd.elastic.run
    def train(state: Any) -> None:
        calls.append(0)
        raise hvd.HorovodInternalError("the end")

    with pytest.raises(hvd.HorovodInternalError, match="the end"):
        train(hvd.elastic.ObjectState())
    assert len(calls) == 1
    hvd.shutdown()


def test_a_state_of_torch_goes_back(link: PreparedLink) -> None:
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 2)
    other = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam([*model.parameters(), *other.parameters()])
    wrapped = hvd.DistributedOptimizer(optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    sampler = hvd.elastic.ElasticSampler(range(20))
    state = hvd.elastic.TorchState(
        model, wrapped, other=other, scheduler=scheduler, sampler=sampler, batch=0
    )
    weights = []

    @hvd.elastic.run
    def train(state: Any) -> None:
        weights.append([one.detach().clone() for one in model.parameters()])
        assert state.model is model
        assert state.scheduler is scheduler
        wrapped.zero_grad()
        other(model(torch.ones(4, 3))).sum().backward()
        wrapped.step()
        if len(weights) == 1:
            state.batch += 1
            scheduler.step()
            sampler.record_batch(0, 5)
            state.commit()
            weights.append([one.detach().clone() for one in model.parameters()])
            wrapped.zero_grad()
            other(model(torch.ones(4, 3))).sum().backward()
            sampler.record_batch(1, 5)
            scheduler.step()
            raise hvd.HorovodInternalError("within a step")

    train(state)
    first, committed, again = weights
    assert not torch.equal(first[0], committed[0])
    assert all(map(torch.equal, committed, again))
    assert scheduler.last_epoch == 1
    assert sampler.processed_num == 5
    assert len(sampler) == 15
    assert state.batch == 1


def test_assigning_a_model_saves_it(link: PreparedLink) -> None:
    state = hvd.elastic.TorchState(model=torch.nn.Linear(2, 1), epoch=0)
    new = torch.nn.Linear(3, 1)
    before = new.weight.detach().clone()
    state.model = new
    assert state.model is new
    with torch.no_grad():
        new.weight += 1
    state.restore()
    assert torch.equal(new.weight, before)


def test_handlers_of_own_types(link: PreparedLink) -> None:
    class Counter:
        number = 0

    class CounterHandler(hvd.elastic.StateHandler):
        def save(self) -> None:
            self.saved = self.value.number

        def restore(self) -> None:
            self.value.number = self.saved

        def sync(self) -> None:
            self.value.number = hvd.broadcast_object(self.value.number)
            self.save()

    registry = hvd.elastic.get_handler_registry()
    hvd.elastic.set_handler_registry([*registry, (Counter, CounterHandler)])
    try:
        state = hvd.elastic.TorchState(model=torch.nn.Linear(2, 1), counter=Counter())
    finally:
        hvd.elastic.set_handler_registry(registry)
    state.counter.number = 4
    state.commit()
    state.counter.number = 5
    state.restore()
    assert state.counter.number == 4


def test_unknown_attributes(link: PreparedLink) -> None:
    state = hvd.elastic.TorchState(model=torch.nn.Linear(2, 1))
    with pytest.raises(AttributeError, match="optimizer"):
        print(state.optimizer)


class _WithShards(hvd.elastic.ObjectState):
    """This rank's only shard is a number."""

    own = 0

    def shards(self) -> dict[str, int]:
        return {"own": self.own}

    def load_shards(self, shards: Any) -> None:
        self.own = sum(one["own"] for _, one in shards)


def test_a_failure_before_the_first_commit_resumes_shards_again(
    link: PreparedLink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No rank has a copy of them then, and a new process has none of its own."""
    group = ShardGroup(7, "ab", 1, 2)
    for rank, own in enumerate((30, 4)):
        snapshot = Snapshot()
        snapshot.take({"own": own})
        write_shards(tmp_path, group, rank, snapshot)
    snapshot = Snapshot()
    snapshot.take({"step": 5})
    write_checkpoint(tmp_path, 7, snapshot, shards=group)
    monkeypatch.setenv("HOROSCALE_RESUME", str(tmp_path))
    exchanged = ShardKeeper.commit
    failures = 2

    def fails_first(self: ShardKeeper, *args: Any) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            state.own = 0  # like a process that has replaced a lost one
            raise hvd.HorovodInternalError("a rank died")
        exchanged(self, *args)

    monkeypatch.setattr(ShardKeeper, "commit", fails_first)

    @hvd.elastic.run
    def train(state: Any) -> tuple[int, int]:
        if state.step == 5:
            state.own, state.step = state.own + 16, 6
            state.commit()
            raise hvd.HorovodInternalError("later")
        return state.step, state.own

    state = _WithShards(step=0)
    assert train(state) == (6, 50)
    assert [commits for commits, _ in link.reports] == [[], [], [7, 8]]
