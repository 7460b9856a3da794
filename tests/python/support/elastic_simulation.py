"""An elastic job whose launcher, ranks and hosts are simulated, with faults at random moments.

Run as a program, `python elastic_simulation.py SEEDS [FIRST]` simulates that many jobs.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from horoscale.common.views import View
from horoscale.driver import BanPolicy, Driver, Rules, Start
from horoscale.driver.driver import first_line

FAULTY_S = 60.0  # faults happen until then
BOUND_S = 400.0  # and then the job must end within this time
COMMIT_S = 0.4


@dataclass
class Rank:
    """A simulated process. A member computes, commits, fails, reports, and enters the next view."""

    number: int
    place: tuple[str, int]
    alive: bool = True
    stopped: bool = False  # as by SIGSTOP
    view: View | None = None
    running: bool = False  # in the view: its start was complete
    commits: list[int] = field(default_factory=list)
    interrupted: bool = False
    left: bool = False
    started: bool = False  # its program waits for a view


class Simulation:
    """One job, from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        r = self.random
        self.hosts = {f"host{i}": r.randint(1, 3) for i in range(r.randint(1, 3))}
        np = r.randint(1, sum(self.hosts.values()))
        min_np = r.randint(1, np)
        self.rules = Rules(
            np=np,
            min_np=min_np,
            max_np=r.randint(np, np + 4),
            elastic_timeout_s=60.0,
            evict_s=r.choice([5.0, 30.0]),
            reset_limit=r.choice([None, None, None, r.randint(0, 6)]),
            bans=r.choice([BanPolicy(), BanPolicy(), BanPolicy.horovod((5.0, 20.0))]),
        )
        self.now = 0.0
        self.ranks: dict[int, Rank] = {}
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.views: dict[int, dict[int, View]] = {}  # by number, what each process received
        self.called_off: set[int] = set()
        self.committed = 0  # by all members of a view
        self.outcome: tuple[int, str] | None = None
        self.drained: set[str] = set()
        self.troubled: set[int] = set()  # views in which a rank has reported a failure
        self.interrupted = False  # whether the driver has asked for a change at a commit
        self.grown = False  # whether a view had more ranks than the one before
        # A job without a rank that holds its state ends: in most seeds one is spared at a time.
        self.spares = r.random() < 0.8
        self.spared: Rank | None = None
        self.done_at = r.uniform(FAULTY_S, FAULTY_S + 30)
        self.driver = Driver(self.rules, self)

    # -------------------------------------------------------------- the launcher's side

    def start(self, order: Start) -> None:
        assert order.process not in self.ranks
        taken = [one.place for one in self.ranks.values() if one.alive]
        assert (order.host, order.slot) not in taken, "two processes in a slot"
        assert self.alive_members() + 1 <= self.rules.max_np + len(self.hosts) * 3
        rank = Rank(order.process, (order.host, order.slot))
        self.ranks[order.process] = rank
        if self.spares and self.spared is None:
            self.spared = rank
        if not isinstance(order.role, View):
            assert order.role.rank > 0, "a standby as rank 0"
        self.send(order.process, first_line(order))
        self.after(self.random.uniform(0.05, 5.0), lambda: self.program_ready(rank))

    def stop(self, process: int, grace_s: float) -> None:
        self.after(self.random.uniform(0, grace_s), lambda: self.die(self.ranks[process], -9))

    def send(self, process: int, line: bytes) -> None:
        rank = self.ranks[process]
        self.after(self.random.choice([0.001, 0.01, 0.2]), lambda: self.hear(rank, line))

    def call_off(self, view: int, why: str) -> None:
        assert why
        self.called_off.add(view)

    def say(self, text: str) -> None:
        assert "\n" not in text

    def finish(self, status: int, why: str) -> None:
        assert self.outcome is None
        self.outcome = (status, why)

    # -------------------------------------------------------------- ranks

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.queue, (self.now + seconds, next(self.order), what))

    def alive_members(self) -> int:
        return sum(one.alive and one.view is not None for one in self.ranks.values())

    def program_ready(self, rank: Rank) -> None:
        """The script has been imported, and needs a view."""
        if not rank.alive:
            return
        rank.started = True
        if rank.view is None:
            self.report(rank, None)
        else:
            self.enter(rank)

    def hear(self, rank: Rank, line: bytes) -> None:
        if not rank.alive or rank.left:
            return
        if rank.stopped and not self.noticed(rank):
            rank.stopped = False  # otherwise the job would wait forever: the user continues it
        if rank.stopped:
            self.after(0.5, lambda: self.hear(rank, line))
            return
        message = json.loads(line)
        if message["kind"] == "interrupt":
            rank.interrupted = self.interrupted = True
        elif message["kind"] == "leave":
            rank.left = True
            self.after(0.1, lambda: self.die(rank, message["status"]))
        elif message["kind"] == "view":
            self.take(rank, View.from_fields(message["view"]))

    def noticed(self, rank: Rank) -> bool:
        """Whether another member that waits for this one is left, and will report."""
        return any(
            one.alive and not one.stopped and one.view is not None
            for one in self.ranks.values()
            if one is not rank
        )

    def take(self, rank: Rank, view: View) -> None:
        """A process receives a view: most of the checks are here."""
        known = self.views.setdefault(view.number, {})
        assert rank.view is None or view.number > rank.view.number, "views only grow"
        for other in known.values():
            assert other.members == view.members
            assert other.previous == view.previous
            assert (other.source, other.commit, other.skip_sync) == (
                view.source,
                view.commit,
                view.skip_sync,
            )
            assert other.rank != view.rank
        known[rank.number] = view
        assert view.members[view.rank] == f"{rank.place[0]}:{rank.place[1]}:{rank.number}"
        assert self.rules.min_np <= view.size <= self.rules.max_np
        if view.number > 1:
            survivors = [one for one in view.previous if one is not None]
            assert view.previous[0] is not None, "a newcomer is rank 0"
            assert view.previous[view.source] is not None, "a newcomer is the source"
            assert len(survivors) >= 1
            if view.previous[view.rank] is not None:
                assert rank.view is not None
                assert rank.view.rank == view.previous[view.rank]
                assert view.commit == 0 or view.commit in rank.commits, "can't go back there"
            assert view.commit >= self.committed - 1, "more is lost than since the last commit"
            if view.skip_sync:
                assert len(survivors) == view.size
                assert view.number - 1 not in self.troubled, "who restores has to sync"
            before = self.views.get(view.number - 1, {})
            self.grown |= bool(before) and view.size > next(iter(before.values())).size
        rank.view, rank.interrupted, rank.running = view, False, False
        if rank.started:
            self.after(self.random.uniform(0.01, 0.3), lambda: self.enter(rank))

    def enter(self, rank: Rank) -> None:
        """The start of a view is complete when all have arrived; it fails when it is cancelled."""
        view = rank.view
        assert view is not None
        if not rank.alive or rank.running or rank.left:
            return
        if rank.stopped:
            self.after(0.5, lambda: self.enter(rank))
            return
        if view.number in self.called_off:
            self.report(rank, "the start was called off")
            return
        rank.running = True
        self.after(self.random.uniform(0.01, 0.1), lambda: self.wait_for_others(rank, view, 0))

    def wait_for_others(self, rank: Rank, view: View, waited: int) -> None:
        if not rank.alive or rank.view is not view or not rank.running:
            return
        if view.number in self.called_off or waited > 300:
            rank.running = False
            self.report(rank, "others did not come")
            return
        members = self.members_of(view)
        if len(members) == view.size and all(
            one.view is not None and one.view.number == view.number and one.running
            for one in members
        ):
            self.synchronize(view, members)
            return
        self.after(0.2, lambda: self.wait_for_others(rank, view, waited + 1))

    def members_of(self, view: View) -> list[Rank]:
        numbers = [int(member.rsplit(":", 1)[1]) for member in view.members]
        return [
            self.ranks[number]
            for number in numbers
            if number in self.ranks and self.ranks[number].alive
        ]

    def synchronize(self, view: View, members: list[Rank]) -> None:
        """All have arrived: all have the source's state, and steps continue."""
        if getattr(self, "running_view", 0) == view.number:
            return
        self.running_view = view.number
        source = next(
            one for one in members if one.view is not None and one.view.rank == view.source
        )
        state = view.commit or max(source.commits, default=0)
        for one in members:
            one.commits = [state] if state else []
        self.after(COMMIT_S, lambda: self.commit(view))

    def commit(self, view: View) -> None:
        """A collective commit, which fails if a member is missing, and waits for stopped ones."""
        members = self.members_of(view)
        present = [one for one in members if one.running and one.view is view_of(one, view)]
        if len(present) < view.size:
            for one in present:
                self.after(
                    self.random.choice([0.05, 0.05, 1.0]),
                    lambda one=one: self.fail(one, view, "a rank failed"),
                )
            return
        if any(one.stopped for one in present):
            if self.now > FAULTY_S + 100:
                for one in present:
                    self.fail(one, view, "stalled for too long")
                return
            self.after(COMMIT_S, lambda: self.commit(view))
            return
        number = max((max(one.commits, default=0) for one in present), default=0) + 1
        # A death in the middle: only some have the new commit.
        if self.random.random() < 0.03 and self.now < FAULTY_S:
            for one in present[: self.random.randrange(len(present))]:
                one.commits = [*one.commits[-1:], number]
            victims = [one for one in present if one is not self.spared]
            if victims:
                self.die(self.random.choice(victims), -9)
            self.after(0.01, lambda: self.commit(view))
            return
        for one in present:
            one.commits = [*one.commits[-1:], number]
        self.committed = number
        if self.spares and (self.spared not in present or self.random.random() < 0.3):
            self.spared = self.random.choice(present)
        if self.now >= self.done_at:
            for one in present:
                self.after(self.random.uniform(0, 1), lambda one=one: self.die(one, 0))
            return
        if any(one.interrupted for one in present):
            for one in present:
                one.running = False
                self.report(one, None)
            return
        self.after(COMMIT_S, lambda: self.commit(view))

    def fail(self, rank: Rank, view: View, why: str) -> None:
        if not rank.alive or rank.view is None or rank.view.number != view.number:
            return
        if rank.stopped:
            self.after(0.5, lambda: self.fail(rank, view, why))
            return
        if rank.running:
            rank.running = False
            self.report(rank, why)

    def report(self, rank: Rank, cause: str | None) -> None:
        number = 0 if rank.view is None else rank.view.number
        line = json.dumps(
            {"kind": "report", "view": number, "commits": rank.commits, "cause": cause}
        ).encode()

        def arrive() -> None:
            if rank.alive:
                if cause is not None:
                    self.troubled.add(number)
                self.driver.said(rank.number, line, self.now)

        self.after(self.random.choice([0.001, 0.05, 0.3]), arrive)

    def die(self, rank: Rank, status: int) -> None:
        if not rank.alive:
            return
        rank.alive = rank.running = False
        delay = self.random.choice([0.001, 0.05, 0.5])
        self.after(
            delay, lambda: self.driver.ended(rank.number, status, f"status {status}", self.now)
        )

    # -------------------------------------------------------------- faults

    def fault(self) -> None:
        r = self.random
        alive = [one for one in self.ranks.values() if one.alive and one is not self.spared]
        what = r.choice(["kill", "kill", "kill all of a host", "stop", "hosts", "drain", "cut"])
        if what == "hosts":
            name = f"host{r.randint(0, 4)}"
            if name in self.hosts and len(self.hosts) > 1 and r.random() < 0.5:
                del self.hosts[name]
            else:
                self.hosts[name] = r.randint(1, 3)
            self.driver.discovered(list(self.hosts.items()), self.now)
        elif what == "drain" and len(self.hosts) - len(self.drained) > 1:
            host = r.choice(sorted(self.hosts))
            self.drained.add(host)
            self.driver.drain(host, self.now)
        elif alive and what == "kill":
            self.die(r.choice(alive), r.choice([-9, 1, -11]))
        elif alive and what == "kill all of a host":
            host = r.choice(alive).place[0]
            if self.spared is None or self.spared.place[0] != host:
                for one in alive:
                    if one.place[0] == host:
                        one.alive = one.running = False
                self.driver.host_lost(host, "silence", self.now)
        elif alive and what == "stop":
            one = r.choice(alive)
            one.stopped = True
            if r.random() < 0.5 or not self.noticed(one):
                self.after(r.uniform(0.1, 20), lambda: setattr(one, "stopped", False))
        elif alive and what == "cut":
            one = r.choice(alive)
            if one.view is not None and one.running:
                self.fail(one, one.view, "its connection was cut")
        if self.now < FAULTY_S:
            self.after(r.expovariate(1 / 5), self.fault)

    # -------------------------------------------------------------- the loop

    def run(self) -> tuple[int, str]:
        """Run until the job has ended; AssertionError, with the seed, on a violation."""
        try:
            self.driver.discovered(list(self.hosts.items()), self.now)
            self.after(self.random.expovariate(1 / 3), self.fault)
            while self.outcome is None:
                self.step()
            assert self.outcome[0] in (0, 1)
            if self.outcome[0] == 0:
                assert not [one for one in self.ranks.values() if one.alive], "left behind"
        except Exception as error:  # including the driver's
            raise AssertionError(f"seed {self.seed} at {self.now:.2f} s: {error!r}") from error
        return self.outcome

    def step(self) -> None:
        deadline = self.driver.deadline(self.now)
        due = self.queue[0][0] if self.queue else float("inf")
        assert deadline is not None or self.queue, "nothing will ever happen"
        if deadline is not None and deadline < due:
            self.now = deadline
            self.driver.check_deadlines(self.now)
        else:
            self.now, _, what = heapq.heappop(self.queue)
            what()
        assert self.now < FAULTY_S + BOUND_S, "the job does not end"


def view_of(rank: Rank, view: View) -> View | None:
    """The rank's view, if it is this one."""
    return rank.view if rank.view is not None and rank.view.number == view.number else None


def simulate(seeds: Iterable[int]) -> tuple[Counter[str], list[str]]:
    """The number of jobs by their end, and the violations by seed."""
    ends: Counter[str] = Counter()
    wrong: list[str] = []
    for seed in seeds:
        try:
            status, why = Simulation(seed).run()
        except AssertionError as error:
            wrong.append(str(error))
            continue
        why = re.sub(r"\d+", "N", why.partition(":")[0])
        ends[why or "well" if status == 0 else why] += 1
    return ends, wrong


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    ends, wrong = simulate(range(first, first + count))
    for end, number in ends.most_common():
        print(f"{number:6} {end}")
    print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
