"""State: what elastic training commits, goes back to, and gives to new ranks."""

from __future__ import annotations

import json
import queue
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from horoscale.common.environment import variable
from horoscale.common.exceptions import HostsUpdatedInterrupt
from horoscale.common.job import current_runtime
from horoscale.common.payloads import broadcast_bytes
from horoscale.elastic.agreement import agree
from horoscale.elastic.checkpointing import Own, checkpointing, resumed, resumed_shards
from horoscale.elastic.checkpoints import read_shards
from horoscale.elastic.commits import Commits
from horoscale.elastic.membership import membership
from horoscale.elastic.newcomers import give, givers, take
from horoscale.elastic.shard_files import ShardGroup, dealt_out
from horoscale.elastic.shards import ShardKeeper
from horoscale.elastic.snapshot import Snapshot
from horoscale.elastic.transfer import all_agree, send_snapshot

_COUNTERS = ("epoch", "step", "batch")  # attributes that --status shows


class State:
    """The interface that hvd.elastic.run() needs; subclasses say how save, restore and sync work.

    Use ObjectState or a framework's state, which do, and keep two numbered commits.
    """

    def __init__(self, **kwargs: Any) -> None:
        """Take no arguments of its own: those of subclasses end here."""
        # Read by existing scripts: what was announced by on_hosts_updated(), and when.
        self._host_messages: queue.Queue[tuple[float, Any]] = queue.Queue()
        self._last_updated_timestamp: float = 0
        self._reset_callbacks: list[Callable[[], None]] = []
        self._saved = False  # the present values, by the commit() that is running or by run()
        super().__init__(**kwargs)

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """Have functions called, in this order, when the ranks of the job have changed.

        They are called without arguments after the job has begun anew and before sync(): to change
        the learning rate with hvd.size(), for example. Process sets are registered by then.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Take note of a new job: called by run()."""
        self._host_messages = queue.Queue()
        self.reset()
        for callback in self._reset_callbacks:
            self._saved = False  # it may change what sync() sends, such as a learning rate
            callback()

    def on_hosts_updated(self, timestamp: float, result: Any) -> None:
        """Announce a change of the hosts, which the next commit() on all ranks finds."""
        self._last_updated_timestamp = timestamp
        self._host_messages.put((timestamp, result))

    def commit(self) -> None:
        """Save the state, and see whether hosts have come or go. Collective.

        Raises HostsUpdatedInterrupt, on all ranks at the same commit, where the ranks are to
        change; MismatchError where the ranks are not at the same commit; HorovodInternalError if a
        rank failed.
        """
        self._before_commit()
        self.save()
        self._saved = True
        self.check_host_updates()
        self._saved = False

    def check_host_updates(self) -> None:
        """See whether hosts have come or go, without saving. Collective.

        Raises as commit() does.
        """
        self._copy_shards()
        announced = int(not self._host_messages.empty())
        wanted = max(membership().interruption(), announced)
        agreed, due = agree(wanted, self._number(), self._is_due())
        self._confirm(due)
        membership().report(self._progress())
        if agreed:
            if not self._saved:
                self._before_commit()
                self.save()
                self._saved = True
                self._copy_shards()
            raise HostsUpdatedInterrupt()

    def save(self) -> None:
        """Keep the present values, to go back to."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to the values of the last save()."""
        raise NotImplementedError

    def sync(self) -> None:
        """Give all ranks the values of the oldest one. Collective."""
        raise NotImplementedError

    def reset(self) -> None:
        """Do what has to be done when the ranks have changed, before the reset callbacks."""

    def shards(self) -> Mapping[str, Any] | None:
        """Return what this rank holds alone, by name; None where ranks have nothing of their own.

        With each commit it goes to a rank on another host, or on this one if there is no other, as
        a copy for the case that this rank is lost. The same on all ranks: a mapping, which may be
        empty, or None.
        """
        return None

    def load_shards(self, shards: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
        """Take shards that are this rank's from now on: called after a change of the ranks.

        `shards` has pairs of a former rank and what shards() gave there at the commit that all go
        on from: this rank's own first, where it had some, then those of a rank that is gone. It is
        empty for a newcomer that takes nobody's place. The values are new ones.
        """
        raise NotImplementedError

    # What run() asks of states. Those that keep numbered commits override the rest.

    def _before_commit(self) -> None:
        """Do what has to be done before the values are saved, on all ranks alike."""

    def _copy_shards(self) -> None:
        """Exchange copies of shards for the commit that was saved last, if there are none yet."""

    def _after_change(self) -> None:
        """Do what has to be done when the ranks have changed and sync() is not needed."""

    def _before_change(self) -> None:
        """Save what would be lost, for ranks are about to come or go."""
        if not self._saved:
            self.save()

    def _saved_is_present(self, *, until_sync: bool) -> None:
        """Take note that nothing has changed since the last save(), if sync() comes next."""
        self._saved = until_sync

    def _give_up(self) -> None:
        """Keep what can be kept: the job ends by a failure."""

    def _last_words(self) -> Callable[[], None] | None:
        """Return what keeps what can be kept when this process is told to end, from any thread."""
        return None

    def _finish(self) -> None:
        """Keep what is to outlast the job: the function has returned."""

    def _end(self) -> None:
        """Be quick with what goes on in the background: the function has been left."""

    def _progress(self) -> dict[str, int]:
        """Return how far training is: those of the usual counters that the state has."""
        counters = ((name, getattr(self, name, None)) for name in _COUNTERS)
        return {name: value for name, value in counters if type(value) is int}

    def _held(self) -> list[int]:
        return []

    def _go_back(self, number: int) -> None:
        self.restore()

    def _number(self) -> int:
        return 0

    def _is_due(self) -> bool:
        """Tell whether this rank says that the commit is to go to disk."""
        return False

    def _confirm(self, due: bool) -> None:
        """Take note that all ranks have the commit, and whether it is due to go to disk."""


class NumberedState(State):
    """A state whose commits are snapshots of one value."""

    def __init__(self, **kwargs: Any) -> None:
        """Begin without commits: subclasses save() when they are complete."""
        self._commits = Commits()
        self._checkpointing = checkpointing()
        self._shards = ShardKeeper()
        self._job = secrets.token_hex(4)  # until the source tells its own
        self._has_copies = False  # of all ranks' shards, since a commit that they share
        self._resumed_from: Any = None  # where the shards are that the job begins with, until then
        super().__init__(**kwargs)

    def save(self) -> None:
        """Keep the present values, to go back to: as the next commit, once all ranks have it."""
        self._commits.save(self._capture())

    def restore(self) -> None:
        """Go back to the values of the last save()."""
        latest = self._commits.latest()
        if latest is not None:
            self._load(latest.value())

    def sync(self) -> None:
        """Give all ranks the values of the rank that the job has chosen: one that has survived.

        Sent are what was saved last and, for a framework's model, what it is now; nothing but what
        differs. Where ranks have just gone back to a commit that they share, only those that have
        joined get it. It is a commit of its own. Collective; raises HorovodInternalError if a rank
        fails.
        """
        saved, self._saved = self._saved, False
        # A reset callback may have changed what only some ranks have.
        if (
            membership().shares_commit
            and all_agree(saved or membership().joined)
            and self._welcome()
        ):
            self._after_change()
            return
        if not saved:
            self._refresh()
        own, number = self._commits.latest(), self._number()
        if membership().begins and not self._commits.agreed:
            own, number = self._resumed() or (own, number)
            saved = False
            if self._checkpointing is not None:
                number = self._checkpointing.first_number(number)
        snapshot, number, was_own = send_snapshot(own, number, membership().source)
        if not (saved and was_own):  # else it is present
            self._load(snapshot.value())
        self._commits.replace(snapshot, number)
        self._after_change()

    def _capture(self) -> Any:
        """Return the present values, of which a snapshot can be taken."""
        raise NotImplementedError

    def _load(self, value: Any) -> None:
        """Make what _capture() returned the present values."""
        raise NotImplementedError

    def _refresh(self) -> None:
        """Save what sync() sends as it is now, not as it was saved last."""

    def _welcome(self) -> bool:
        """Give the commit that all others have to those that have joined; tell whether it is done.

        It is not where too many have.
        """
        view = membership().view
        assert view is not None
        giver_of = givers([one.rsplit(":", 2)[0] for one in view.members], view.previous)
        if giver_of is None:
            return False
        if not membership().joined:
            commit = self._commits.go_back(view.commit)
            assert commit is not None
            give(view, giver_of, commit)
            return True
        # Memory that has been written to before is filled faster.
        commit = take(view, giver_of, self._commits.release())
        self._load(commit.value())
        self._commits.replace(commit, view.commit)
        return True

    def _copy_shards(self) -> None:
        shards = self.shards()
        if shards is not None and not self._shards.has(self._number()):
            self._keep_shards(shards)

    def _keep_shards(self, shards: Mapping[str, Any]) -> None:
        view = membership().view
        if view is not None:
            self._shards.commit(view, self._number(), shards)
        elif self._checkpointing is not None:
            topology = current_runtime().topology
            self._shards.keep(topology.rank, topology.size, self._number(), shards)

    def _after_change(self) -> None:
        """Get the shards of the commit, and give copies to the present buddies."""
        if self.shards() is None:
            return
        recovered = None
        if self._checkpointing is not None or variable("RESUME")[1]:
            recovered = self._resumed_shards()
        view = membership().view
        if view is not None:
            if membership().begins:
                self._shards.forget_before(view.number)
            kept = self._shards.recover(self._number())
            recovered = recovered if kept is None else kept
        if recovered is not None:
            self.load_shards(recovered)
        self._keep_shards(self.shards() or {})
        if view is not None and membership().begins:
            all_agree(True)  # none counts on the first copies before all are there
        self._has_copies = True
        self._resumed_from = None  # from now on a rank that is lost has left a copy

    def _resumed_shards(self) -> list[tuple[int, Any]] | None:
        """Learn the job's name, and return this rank's part of the shards that it begins with."""
        runtime, source = current_runtime(), membership().source
        own = json.dumps([self._job, self._resumed_from]).encode()
        is_source = runtime.topology.rank == source
        told = broadcast_bytes(runtime, own if is_source else None, source, "elastic.job")
        self._job, self._resumed_from = json.loads(told)
        if self._resumed_from is None:
            return None
        folder, group = Path(self._resumed_from[0]), ShardGroup.from_fields(self._resumed_from[1])
        mine = dealt_out(group.ranks, runtime.topology.size)[runtime.topology.rank]
        return [(former, read_shards(folder, group, former).value()) for former in mine]

    def _progress(self) -> dict[str, int]:
        return {"commit": self._commits.confirmed, **super()._progress()}

    def _held(self) -> list[int]:
        held = self._commits.held()
        if membership().view is None or self.shards() is None:
            return held
        return [number for number in held if self._has_copies and self._shards.has(number)]

    def _go_back(self, number: int) -> None:
        snapshot = self._commits.go_back(number)
        if snapshot is not None:
            self._load(snapshot.value())

    def _number(self) -> int:
        return self._commits.newest

    def _is_due(self) -> bool:
        return (
            self._checkpointing is not None
            and self._number() > self._commits.confirmed
            and self._checkpointing.is_due(self._number())
        )

    def _confirm(self, due: bool) -> None:
        before = self._commits.confirmed
        confirmed = self._commits.confirm()
        self._shards.confirm(confirmed)
        if due and confirmed > before and self._checkpointing is not None:
            self._checkpointing.committed(self._commits, self._own_shards())

    def _own_shards(self) -> Own:
        return self._shards.own(self._job)

    def _give_up(self, *, only_shards: bool = False) -> None:
        if self._checkpointing is not None and self._commits.agreed:
            own = self._own_shards()
            self._checkpointing.write_now(self._commits, own, only_shards=only_shards)

    def _last_words(self) -> Callable[[], None] | None:
        return None if self._checkpointing is None else self._terminate

    def _terminate(self) -> None:
        # The host of rank 0 may be what the job has lost: one rank of each host writes.
        try:
            writes = current_runtime().topology.local_rank == 0
        except ValueError:
            writes = True  # between two views nobody knows who is left
        self._give_up(only_shards=not writes)

    def _finish(self) -> None:
        self._give_up(only_shards=current_runtime().topology.rank != 0)

    def _end(self) -> None:
        if self._checkpointing is not None:
            self._checkpointing.hurry()

    def _resumed(self) -> tuple[Snapshot, int] | None:
        """Return the checkpoint to begin with, if this rank is to send it."""
        if current_runtime().topology.rank != membership().source:
            return None
        checkpoint = resumed()
        if checkpoint is None:
            return None
        number, snapshot = checkpoint
        self._resumed_from = resumed_shards(number)
        return snapshot, number
