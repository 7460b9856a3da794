"""State: the values that elastic training commits, restores and sends to new ranks."""

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
    """The interface that hvd.elastic.run() needs. Subclasses implement save, restore and sync.

    Use ObjectState or the state of a framework, which implement them and keep two numbered commits.
    """

    def __init__(self, **kwargs: Any) -> None:
        """Ignore the keyword arguments of subclasses."""
        # Existing scripts read these: the changes announced by on_hosts_updated(), and when.
        self._host_messages: queue.Queue[tuple[float, Any]] = queue.Queue()
        self._last_updated_timestamp: float = 0
        self._reset_callbacks: list[Callable[[], None]] = []
        self._saved = False  # the current values, by the running commit() or by run()
        super().__init__(**kwargs)

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """Register functions to call, in this order, when the ranks of the job have changed.

        They are called without arguments after the job has restarted and before sync(), for example
        to scale the learning rate by hvd.size(). Process sets are already registered.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Handle a restart of the job. Called by run()."""
        self._host_messages = queue.Queue()
        self.reset()
        for callback in self._reset_callbacks:
            self._saved = False  # may change what sync() sends, such as a learning rate
            callback()

    def on_hosts_updated(self, timestamp: float, result: Any) -> None:
        """Announce a change of the hosts, which the next commit() detects on all ranks."""
        self._last_updated_timestamp = timestamp
        self._host_messages.put((timestamp, result))

    def commit(self) -> None:
        """Save the state, and check whether hosts were added or removed. Collective.

        Raises HostsUpdatedInterrupt, on all ranks at the same commit, if the ranks are about to
        change; MismatchError if the ranks are not at the same commit; HorovodInternalError if a
        rank failed.
        """
        self._before_commit()
        self.save()
        self._saved = True
        self.check_host_updates()
        self._saved = False

    def check_host_updates(self) -> None:
        """Check whether hosts were added or removed, without saving. Collective.

        Raises the same exceptions as commit().
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
        """Save the current values for restore()."""
        raise NotImplementedError

    def restore(self) -> None:
        """Restore the values of the last save()."""
        raise NotImplementedError

    def sync(self) -> None:
        """Send the values of the oldest rank to all ranks. Collective."""
        raise NotImplementedError

    def reset(self) -> None:
        """Handle a change of the ranks, before the reset callbacks."""

    def shards(self) -> Mapping[str, Any] | None:
        """Return the values that only this rank has, by name; None if ranks have no such values.

        Each commit copies them to a rank on another host (or on this one, if there is no other), in
        case this rank is lost. All ranks must return a mapping, which may be empty, or all must
        return None.
        """
        return None

    def load_shards(self, shards: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
        """Take over shards after a change of the ranks.

        `shards` contains pairs of a former rank and the value of its shards() at the commit from
        which all ranks continue: first this rank's own, if it had any, then those of lost ranks. It
        is empty on a new rank that replaces none. The values are new copies.
        """
        raise NotImplementedError

    # Hooks for run(). States with numbered commits override the rest.

    def _before_commit(self) -> None:
        """Prepare to save the values, on all ranks."""

    def _copy_shards(self) -> None:
        """Exchange copies of the shards of the last saved commit, unless they exist."""

    def _after_change(self) -> None:
        """Handle a change of the ranks that does not need sync()."""

    def _before_change(self) -> None:
        """Save values that would be lost, because the ranks are about to change."""
        if not self._saved:
            self.save()

    def _saved_is_present(self, *, until_sync: bool) -> None:
        """Record that nothing has changed since the last save(), if sync() comes next."""
        self._saved = until_sync

    def _give_up(self) -> None:
        """Write what can be saved, because the job ends with a failure."""

    def _last_words(self) -> Callable[[], None] | None:
        """Return a function, callable from any thread, that saves the state on SIGTERM."""
        return None

    def _finish(self) -> None:
        """Write the final state, because the function has returned."""

    def _end(self) -> None:
        """Finish background work quickly, because the function has been left."""

    def _progress(self) -> dict[str, int]:
        """Return the progress of training: the usual counters that the state has."""
        counters = ((name, getattr(self, name, None)) for name in _COUNTERS)
        return {name: value for name, value in counters if type(value) is int}

    def _held(self) -> list[int]:
        return []

    def _go_back(self, number: int) -> None:
        self.restore()

    def _number(self) -> int:
        return 0

    def _is_due(self) -> bool:
        """Return whether this rank requests that the commit be written to disk."""
        return False

    def _confirm(self, due: bool) -> None:
        """Record that all ranks have the commit. Write it to disk if it is due."""


class NumberedState(State):
    """A state whose commits are snapshots of one value."""

    def __init__(self, **kwargs: Any) -> None:
        """Start without commits. Subclasses call save() at the end of their constructor."""
        self._commits = Commits()
        self._checkpointing = checkpointing()
        self._shards = ShardKeeper()
        self._job = secrets.token_hex(4)  # replaced by the source's
        self._has_copies = False  # of all ranks' shards, for a shared commit
        self._resumed_from: Any = None  # location of the initial shards, until they are read
        super().__init__(**kwargs)

    def save(self) -> None:
        """Save the current values. They are the next commit once all ranks have saved."""
        self._commits.save(self._capture())

    def restore(self) -> None:
        """Restore the values of the last save()."""
        latest = self._commits.latest()
        if latest is not None:
            self._load(latest.value())

    def sync(self) -> None:
        """Send the values of a surviving rank, chosen by the job, to all ranks.

        It sends the values that were saved last, but the current values of a framework's model.
        Only values that differ are sent. If ranks have just restored a shared commit, only new
        ranks receive it. sync() counts as a commit. Collective. Raises HorovodInternalError if a
        rank fails.
        """
        saved, self._saved = self._saved, False
        # A reset callback may have changed values on some ranks only.
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
        if not (saved and was_own):  # else it is already loaded
            self._load(snapshot.value())
        self._commits.replace(snapshot, number)
        self._after_change()

    def _capture(self) -> Any:
        """Return the current values, for a snapshot."""
        raise NotImplementedError

    def _load(self, value: Any) -> None:
        """Set the values to a result of _capture()."""
        raise NotImplementedError

    def _refresh(self) -> None:
        """Save the current values of the parts for which sync() sends current values."""

    def _welcome(self) -> bool:
        """Send the shared commit to the ranks that have joined. Return whether this was done.

        It is not done if too many ranks have joined.
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
        # Writing to previously used memory is faster.
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
        """Recover the shards of the commit, and send copies to the current buddies."""
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
            all_agree(True)  # no rank relies on the first copies before all exist
        self._has_copies = True
        self._resumed_from = None  # from now on all shards have a copy

    def _resumed_shards(self) -> list[tuple[int, Any]] | None:
        """Receive the job's name, and return this rank's part of the initial shards."""
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
        # The job may have lost the host of rank 0, so one rank of each host writes.
        try:
            writes = current_runtime().topology.local_rank == 0
        except ValueError:
            writes = True  # between two views, the remaining ranks are unknown
        self._give_up(only_shards=not writes)

    def _finish(self) -> None:
        self._give_up(only_shards=current_runtime().topology.rank != 0)

    def _end(self) -> None:
        if self._checkpointing is not None:
            self._checkpointing.hurry()

    def _resumed(self) -> tuple[Snapshot, int] | None:
        """Return the checkpoint to start from, if this rank sends it."""
        if current_runtime().topology.rank != membership().source:
            return None
        checkpoint = resumed()
        if checkpoint is None:
            return None
        number, snapshot = checkpoint
        self._resumed_from = resumed_shards(number)
        return snapshot, number
