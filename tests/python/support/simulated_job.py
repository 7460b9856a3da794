"""A whole job on the pure control plane, in one thread: ranks with programs, links, process sets.

Every rank has its own `Member` of each of its sets, and the `Coordinator` if it is the set's
lowest. With `host_size` the members on a host report through an `Aggregator` on the lowest of them,
and hosts through each other in a chain. A seeded generator draws the next event (a rank continues
its program, a message arrives, a bucket is executed), so that any order that FIFO links allow can
occur. A job checks after every action that all members do the same; `check_end` checks what must
hold when nothing can happen any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from horoscale.sim import (
    Action,
    ActionType,
    Aggregator,
    Coordinator,
    CoordinatorOptions,
    DataType,
    GroupReport,
    JointReport,
    Member,
    OpKind,
    PlanEntry,
    Report,
    Request,
    Signature,
    StatusCode,
    StatusError,
)

ELEMENT_BYTES = {DataType.FLOAT32: 4, DataType.INT64: 8}
KINDS_WITHOUT_JOINED = {OpKind.ALLREDUCE, OpKind.BARRIER, OpKind.BROADCAST}


@dataclass(frozen=True)
class Submit:
    """An operation of a process set, as one rank submits it. All ranks give it the same number."""

    set_key: int
    number: int
    request: Request


@dataclass(frozen=True)
class Register:
    """add_process_set or remove_process_set, which blocks the rank. Adding creates `set_key`."""

    set_key: int
    number: int
    request: Request


@dataclass(frozen=True)
class Join:
    """join() on all sets of the rank, which blocks it."""


Step = Submit | Register | Join


@dataclass
class Submission:
    """The result of a Submit, a Register or a Join of one rank."""

    rank: int
    number: int
    request: Request
    endings: list[str] = field(default_factory=list)
    done: dict[int, int] = field(default_factory=dict)  # elements executed, by tensor


@dataclass
class Published:
    """The entries of one call of take_plan()."""

    executed_before: int
    last: int


@dataclass
class History:
    """The actions of a set, as its first member executes them: the others must agree."""

    options: CoordinatorOptions
    actions: list[tuple[object, ...]] = field(default_factory=list)
    # Of member 0's actions: bytes, highest and lowest priority, numbers; bytes -1: not a bucket.
    buckets: list[tuple[int, int, int, frozenset[int]]] = field(default_factory=list)
    published: list[Published] = field(default_factory=list)
    submissions: dict[int, Submission] = field(default_factory=dict)  # by token
    removed: bool = False


class LocalSet:
    """One rank's state in one process set."""

    def __init__(self, history: History, rank: int, host_size: int) -> None:
        options = history.options
        self.history = history
        self.rank = rank
        self.index = options.ranks.index(rank)
        self.member = Member(
            options.process_set_id, self.index, len(options.ranks), options.cache_capacity
        )
        self.coordinator = Coordinator(options) if self.index == 0 else None
        # The target of its reports, and the aggregator of those that it receives.
        self.superior = options.ranks[0]
        self.aggregator: Aggregator | None = None
        if host_size:
            here = [r for r in options.ranks if r // host_size == rank // host_size]
            before = [r for r in options.ranks if r // host_size < rank // host_size]
            if rank != here[0]:
                self.superior = here[0]
            elif before:
                hosts = sorted({r // host_size for r in before})
                self.superior = next(r for r in before if r // host_size == hosts[-1])
                self.aggregator = Aggregator(range(self.index, len(options.ranks)), 1.0)
        self.queue: deque[Action] = deque()
        self.executed = 0


class Rank:
    """One process: its program, its sets by incarnation, and its assigned ids."""

    def __init__(self, number: int, program: list[Step], stops_after: int | None) -> None:
        self.number = number
        self.program = program
        self.next = 0
        self.end = len(program) if stops_after is None else min(stops_after, len(program))
        self.waits_for: set[tuple[int, int]] = set()  # incarnation and token
        self.sets: dict[int, LocalSet] = {}
        self.incarnation_of_key: dict[int, int] = {}
        self.id_of_key: dict[int, int] = {}
        self.free_ids: list[int] = []
        self.next_id = 0
        self.next_incarnation = 0
        self.early: list[tuple[int, int, bytes]] = []


class SimulatedJob:
    """Runs the programs to the end, or until nothing can happen any more."""

    def __init__(
        self,
        programs: list[list[Step]],
        static_sets: list[tuple[int, list[int]]],
        make_options: Callable[[], CoordinatorOptions],
        seed: int,
        *,
        stops: dict[int, int] | None = None,
        slow: frozenset[int] = frozenset(),
        host_size: int = 0,
    ) -> None:
        self.now = 0.0
        self.host_size = host_size
        self.random = Random(seed)
        self.make_options = make_options
        self.slow = slow
        self.histories: list[History] = []  # by incarnation
        self.next_token = 1
        size = len(programs)
        self.ranks = [Rank(r, programs[r], (stops or {}).get(r)) for r in range(size)]
        self.links: dict[tuple[int, int], deque[tuple[int, bytes]]] = {
            (a, b): deque() for a in range(size) for b in range(size) if a != b
        }
        for rank in self.ranks:
            for key, members in static_sets:
                self._create_set(rank, key, members)

    # ------------------------------------------------------------------ events

    def run(self) -> None:
        """Run events in random order until none is possible."""
        while True:
            eagerness = self.random.choice((0.05, 0.3, 1.0))
            events = list(self._events())
            self.random.shuffle(events)
            happened = False
            for rank, event in events:
                chance = eagerness * (0.02 if rank in self.slow else 1.0)
                if self.random.random() < chance:
                    happened = event() or happened
            self.now += 0.01
            if not happened and not self._sweep():
                self.now += 1.0
                if not self._sweep():
                    return

    def _sweep(self) -> bool:
        happened = False
        for _, event in list(self._events()):
            happened = event() or happened
        return happened

    def _events(self) -> Iterator[tuple[int, Callable[[], bool]]]:
        for rank in self.ranks:
            yield rank.number, lambda rank=rank: self._go_on(rank)
            for incarnation in rank.sets:
                for act in (self._report, self._aggregate, self._publish, self._execute):
                    yield rank.number, lambda r=rank, i=incarnation, a=act: i in r.sets and a(r, i)
        for link in self.links:
            yield link[1], lambda link=link: self._deliver(link)

    def _go_on(self, rank: Rank) -> bool:
        """Make the next call of the rank's program, unless it is blocked."""
        if rank.waits_for or rank.next == rank.end:
            return False
        step = rank.program[rank.next]
        if isinstance(step, Join):
            join = Request(Signature(OpKind.JOIN))
            for incarnation in rank.sets:
                rank.waits_for.add((incarnation, self._submit(rank, incarnation, -1, join)))
        elif isinstance(step, Register):
            rank.waits_for.add((0, self._submit(rank, 0, step.number, step.request)))
        elif step.set_key in rank.incarnation_of_key:
            incarnation = rank.incarnation_of_key[step.set_key]
            try:
                self._submit(rank, incarnation, step.number, step.request)
            except StatusError as error:
                if error.code is not StatusCode.DUPLICATE_NAME:
                    raise
                return False  # the previous step is still in progress
        rank.next += 1
        return True

    def _submit(self, rank: Rank, incarnation: int, number: int, request: Request) -> int:
        token = self.next_token
        rank.sets[incarnation].member.submit(request, token)
        self.next_token += 1
        submission = Submission(rank.number, number, request)
        self.histories[incarnation].submissions[token] = submission
        return token

    def _report(self, rank: Rank, incarnation: int) -> bool:
        local = rank.sets[incarnation]
        report = local.member.take_report()
        if report is None:
            return False
        encoded = report.encode()
        assert Report.decode(encoded) == report
        if local.coordinator:
            local.coordinator.on_report(0, report)
        else:
            self._take_report(rank, local, GroupReport([JointReport([local.index], report)]))
        return True

    def _take_report(self, rank: Rank, local: LocalSet, report: GroupReport) -> None:
        """A report of this rank, or one that it forwards."""
        if local.coordinator:
            local.coordinator.on_group_report(report)
        elif local.aggregator:
            local.aggregator.on_report(report, self.now)
        else:
            self._send_report(rank, local, report)

    def _send_report(self, rank: Rank, local: LocalSet, report: GroupReport) -> None:
        encoded = report.encode()
        assert GroupReport.decode(encoded) == report
        incarnation = self.histories.index(local.history)
        self.links[rank.number, local.superior].append((incarnation, encoded))

    def _aggregate(self, rank: Rank, incarnation: int) -> bool:
        """Forward complete reports, and those that have been held for long."""
        local = rank.sets[incarnation]
        report = local.aggregator.take_report(self.now) if local.aggregator else None
        if report is None:
            return False
        self._send_report(rank, local, report)
        return True

    def _publish(self, rank: Rank, incarnation: int) -> bool:
        local = rank.sets[incarnation]
        if local.coordinator is None or not local.coordinator.has_work():
            return False
        plan = local.coordinator.take_plan()
        assert plan, "has_work() and then there was none"
        local.history.published.append(Published(local.executed, plan[-1].sequence))
        for entry in plan:
            encoded = entry.encode()
            assert PlanEntry.decode(encoded) == entry
            for other in local.history.options.ranks[1:]:
                self.links[rank.number, other].append((incarnation, encoded))
            self._apply(local, incarnation, entry)
        return True

    def _deliver(self, link: tuple[int, int]) -> bool:
        if not self.links[link]:
            return False
        incarnation, encoded = self.links[link].popleft()
        self._on_frame(self.ranks[link[1]], link[0], incarnation, encoded)
        return True

    def _on_frame(self, rank: Rank, sender: int, incarnation: int, encoded: bytes) -> None:
        """Kept if the set is not registered yet, dropped if it was removed, as in the runtime."""
        local = rank.sets.get(incarnation)
        if local is None:
            if incarnation >= rank.next_incarnation:
                rank.early.append((sender, incarnation, encoded))
        elif sender > rank.number:
            self._take_report(rank, local, GroupReport.decode(encoded))
        else:
            self._apply(local, incarnation, PlanEntry.decode(encoded))

    def _apply(self, local: LocalSet, incarnation: int, entry: PlanEntry) -> None:
        action = local.member.apply(entry)
        self._check_action(local, incarnation, action)
        local.queue.append(action)

    def _execute(self, rank: Rank, incarnation: int) -> bool:
        local = rank.sets[incarnation]
        if not local.queue:
            return False
        action = local.queue.popleft()
        local.executed = action.sequence
        if local.coordinator:
            local.coordinator.on_executed(action.sequence)
        succeeded = action.type is not ActionType.FAIL
        if succeeded and action.common.kind is OpKind.ADD_PROCESS_SET:
            self._register(rank, local, action, self._add)
        if succeeded and action.common.kind is OpKind.REMOVE_PROCESS_SET:
            self._register(rank, local, action, self._remove)
        for token in action.finished:
            how = "executed" if succeeded else f"failed: {action.failure_code.name}"
            self._end(rank, incarnation, token, how)
        return True

    def _end(self, rank: Rank, incarnation: int, token: int, how: str) -> None:
        self.histories[incarnation].submissions[token].endings.append(how)
        rank.waits_for.discard((incarnation, token))

    # ------------------------------------------------------------------ registration

    def _register(
        self,
        rank: Rank,
        local: LocalSet,
        action: Action,
        perform: Callable[[Rank, int, list[int]], None],
    ) -> None:
        number = local.history.submissions[action.finished[0]].number
        step = next(s for s in rank.program if isinstance(s, Register) and s.number == number)
        perform(rank, step.set_key, step.request.signature.ranks)

    def _add(self, rank: Rank, key: int, members: list[int]) -> None:
        self._create_set(rank, key, members)

    def _remove(self, rank: Rank, key: int, _: list[int]) -> None:
        incarnation = rank.incarnation_of_key.pop(key)
        rank.free_ids.append(rank.id_of_key.pop(key))
        self.histories[incarnation].removed = True
        if local := rank.sets.pop(incarnation, None):
            for token in local.member.abandon():
                self._end(rank, incarnation, token, "removed")
            for action in local.queue:  # planned, but never executed
                for token in action.finished:
                    self._end(rank, incarnation, token, "removed")

    def _create_set(self, rank: Rank, key: int, members: list[int]) -> None:
        set_id = rank.free_ids.pop(0) if rank.free_ids else rank.next_id
        rank.next_id = max(rank.next_id, set_id + 1)
        incarnation = rank.next_incarnation
        rank.next_incarnation += 1
        if incarnation == len(self.histories):
            options = self.make_options()
            options.process_set_id = set_id
            options.ranks = members
            options.goes_on_without_joined = set_id == 0
            self.histories.append(History(options))
        history = self.histories[incarnation]
        assert (history.options.process_set_id, history.options.ranks) == (set_id, members)
        rank.id_of_key[key] = set_id
        rank.incarnation_of_key[key] = incarnation
        if rank.number not in members:
            return
        rank.sets[incarnation] = LocalSet(history, rank.number, self.host_size)
        early, rank.early = rank.early, []
        for sender, of, encoded in early:
            self._on_frame(rank, sender, of, encoded)

    # ------------------------------------------------------------------ invariants

    def _check_action(self, local: LocalSet, incarnation: int, action: Action) -> None:
        history = local.history
        submissions = history.submissions
        absent = local.index in action.absent
        pieces = [(p.tensor, p.begin, p.count) for p in action.pieces]
        numbers = [None if absent else submissions[p.token].number for p in action.pieces]
        same = (action.type, action.failure_message, action.last_joined, action.absent, pieces)
        if action.sequence > len(history.actions):
            history.actions.append((*same, None if absent else numbers))
            assert action.sequence == len(history.actions)
        *others, other_numbers = history.actions[action.sequence - 1]
        assert list(same) == others, f"set {incarnation}: members do different things"
        if other_numbers is None and not absent:
            history.actions[action.sequence - 1] = (*same, numbers)
        elif not absent:
            assert numbers == other_numbers, f"set {incarnation}: different operations together"
        if action.type is ActionType.EXECUTE:
            self._check_pieces(local, action, absent)
        if action.type is ActionType.FAIL:
            self._check_failure(history, action)
        if local.index == 0:
            self._note_bucket(history, action, absent)

    def _check_pieces(self, local: LocalSet, action: Action, absent: bool) -> None:
        """Parts of a tensor are consecutive; finished tensors are complete."""
        options = local.history.options
        submissions = local.history.submissions
        limit = min(options.fusion_threshold_bytes, options.credit_bytes // 2)
        size = sum(p.count for p in action.pieces) * ELEMENT_BYTES[action.dtype]
        assert len({p.token for p in action.pieces}) <= 1 or absent or size <= limit
        assert action.absent == [] or action.common.kind in KINDS_WITHOUT_JOINED
        if absent:
            assert all(p.token == 0 for p in action.pieces)
            return
        for piece in action.pieces:
            submission = submissions[piece.token]
            assert submission.rank == local.rank
            assert submission.done.get(piece.tensor, 0) == piece.begin
            submission.done[piece.tensor] = piece.begin + piece.count
            if options.partition_bytes and len(submission.request.signature.tensors) == 1:
                largest = max(options.partition_bytes, 64 * ELEMENT_BYTES[action.dtype])
                cut = action.common.kind in (OpKind.ALLREDUCE, OpKind.BROADCAST)
                assert not cut or piece.count * ELEMENT_BYTES[action.dtype] <= largest
        for token in action.finished:
            tensors = submissions[token].request.signature.tensors
            assert (
                submissions[token].done == {i: t.num_elements() for i, t in enumerate(tensors)}
                or not tensors
            )

    def _check_failure(self, history: History, action: Action) -> None:
        for token in action.finished:
            number = history.submissions[token].number
            same = [s for s in history.submissions.values() if s.number == number]
            contradict = any(s.request.signature != same[0].request.signature for s in same)
            if action.failure_code is StatusCode.MISMATCH:
                assert contradict, action.failure_message
                for speaker in same:
                    named = str(speaker.rank) in action.failure_message
                    assert named or "-" in action.failure_message  # within a range: "2-5"
            else:
                assert action.failure_code is StatusCode.JOINED
                assert not contradict, action.failure_message
                assert len(same) < len(history.options.ranks), action.failure_message

    def _note_bucket(self, history: History, action: Action, absent: bool) -> None:
        """Among entries published together, none runs before a more urgent one."""
        if action.type is not ActionType.EXECUTE:
            history.buckets.append((-1, 0, 0, frozenset()))
            return
        submissions = [history.submissions[p.token] for p in action.pieces if p.token]
        urgent = history.options.priority_scheduling
        priorities = [s.request.priority if urgent else 0 for s in submissions] or [0]
        size = sum(p.count for p in action.pieces) * ELEMENT_BYTES[action.dtype]
        numbers = frozenset(s.number for s in submissions)
        before = history.buckets[-1] if history.buckets else (-1, 0, 0, frozenset())
        batch_ends = {p.last for p in history.published}
        if action.sequence - 1 not in batch_ends and before[0] >= 0:
            assert before[2] >= max(priorities), "less urgent first"
        history.buckets.append((size, max(priorities), min(priorities), numbers))

    def check_end(self) -> None:
        """Everything that could end has ended, and the rest waits for the right ranks."""
        for incarnation, history in enumerate(self.histories):
            for submission in history.submissions.values():
                assert len(submission.endings) <= 1, submission
            self._check_credit(history)
            if not history.removed:
                self._check_pending(incarnation, history)

    def _check_credit(self, history: History) -> None:
        for published in history.published:
            ahead = history.buckets[published.executed_before : published.last]
            ahead = [bucket for bucket in ahead if bucket[0] >= 0]
            one_operation = len({bucket[3] for bucket in ahead}) == 1
            size = sum(bucket[0] for bucket in ahead)
            assert size <= history.options.credit_bytes or len(ahead) == 1 or one_operation

    def _check_pending(self, incarnation: int, history: History) -> None:
        """A unit is pending if and only if a member has neither submitted it nor joined."""
        members = history.options.ranks
        for rank in members:
            local = self.ranks[rank].sets[incarnation]
            assert local.executed == len(history.actions), "a member has not executed everything"
            assert not local.queue
        said: dict[int, set[int]] = {}
        ended: dict[int, set[int]] = {}
        for submission in history.submissions.values():
            if submission.request.signature.kind is OpKind.JOIN:
                continue
            said.setdefault(submission.number, set()).add(submission.rank)
            if submission.endings:
                ended.setdefault(submission.number, set()).add(submission.rank)
        joins = [s for s in history.submissions.values() if s.number == -1 and not s.endings]
        joined = {s.rank for s in joins}
        missing = {}
        for number, ranks in said.items():
            waits_for = set(members) - ranks - joined
            if number in ended:
                assert ended[number] == ranks, f"operation {number} ended on some members only"
            else:
                assert waits_for, f"operation {number} is ready and was not executed"
                missing[number] = sorted(waits_for)
        self._check_stall_reports(incarnation, history, missing)

    def _check_stall_reports(
        self, incarnation: int, history: History, missing: dict[int, list[int]]
    ) -> None:
        coordinator = self.ranks[history.options.ranks[0]].sets[incarnation].coordinator
        assert coordinator is not None
        reports = coordinator.take_stall_reports(1e9)
        assert sorted(r.missing_ranks for r in reports) == sorted(missing.values())

    def all_ended(self) -> bool:
        """Whether every submission of every rank has ended."""
        return all(s.endings for h in self.histories for s in h.submissions.values())
