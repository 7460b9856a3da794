"""Elastic jobs with faults at random moments, compared bit by bit with fault-free replays."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import namespaces
from support.namespaces import NetworkHosts

sys.path.append(str(Path(__file__).parents[1] / "integration"))
from launcher_process import Launcher, children_of, environment, launcher_command

PROGRAM = Path(__file__).with_name("elastic_rank.py")
REPLAY = Path(__file__).with_name("elastic_replay.py")
PATIENCE_S = 90.0  # for events that take up to a few seconds
SLOTS = 4  # of all hosts together
EVICT_S = 1.5  # where ranks are stopped; otherwise a slow machine would lose the spared rank
LOCAL = ("localhost", "127.0.0.1")

WHERE = ("one host", "two names", "two hosts")
FAULTS = {
    "a rank is killed": WHERE,
    "several at once": WHERE,
    "during recovery": WHERE,
    "a standby, too": ("one host",),
    "a rank is paused": WHERE,
    "one stopped, one killed": ("one host", "two hosts"),
    "a supervisor is killed": ("two names", "two hosts"),
    "a host is lost": ("two names", "two hosts"),
    "any of these": WHERE,
}
STOPPING = ("one stopped, one killed", "any of these")
KINDS = [(fault, where) for fault, places in FAULTS.items() for where in places]

Event = dict[str, Any]


@dataclass
class ElasticOutcome:
    """The result of one job."""

    fault: str
    where: str
    seed: int
    strikes: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    bits: str = ""
    views: list[Any] = field(default_factory=list)
    steps: int = 0
    recoveries: list[float] = field(default_factory=list)  # from each kill to the next step


class _Job:
    """A running job, its members and the events that they have recorded."""

    def __init__(self, launcher: Launcher, folder: Path, hosts: Sequence[str]) -> None:
        self.launcher = launcher
        self.folder = folder
        self.hosts = hosts
        self.guards = children_of(launcher.process.pid)  # of supervisors, or remote shells

    def events(self) -> list[Event]:
        found = []
        for file in self.folder.glob("log.*"):
            found += [json.loads(line) for line in file.read_text().split("\n")[:-1]]
        return sorted(found, key=lambda event: float(event["time"]))

    def complete(self) -> tuple[int, set[int]]:
        """The latest view whose ranks have all committed, and their processes."""
        members: dict[int, set[int]] = {}
        sizes: dict[int, int] = {}
        for event in self.events():
            if event["event"] == "begin":
                sizes[event["view"]] = len(event["members"])
            elif event["full"]:
                members.setdefault(event["view"], set()).add(event["pid"])
        for view in sorted(sizes, reverse=True):
            if len(members.get(view, ())) == sizes[view]:
                return view, members[view]
        return 0, set()

    def ranks(self) -> list[int]:
        """All processes that run the program, including standbys."""
        found = []
        for pid in self.launcher.processes():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if os.fsencode(PROGRAM) in words[:3] and pid != self.launcher.process.pid:
                    found.append(pid)
        return found

    def host_of(self, pid: int) -> str:
        with contextlib.suppress(OSError):
            for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                name, _, value = variable.partition(b"=")
                if name == b"HOROVOD_HOSTNAME":
                    return value.decode()
        return ""

    def wait(self, met: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + PATIENCE_S
        while not met():
            if self.launcher.process.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.02)  # processes that are not children can only be polled
        return True


class _Strikes:
    """Injects faults into a job, and always spares one process that holds its state."""

    def __init__(self, job: _Job, outcome: ElasticOutcome, random: random.Random) -> None:
        self._job = job
        self._outcome = outcome
        self._random = random
        self._spared = 0
        self._spared_view = 0
        self.killed_at: list[tuple[float, int]] = []  # time and view

    def strike(self, fault: str) -> None:
        if fault == "any of these":
            fault = self._random.choice([one for one in FAULTS if self._possible(one)])
        self._outcome.strikes.append(fault)
        self._choose_spared()
        {
            "a rank is killed": lambda: self._kill(1),
            "several at once": lambda: self._kill(self._random.randint(2, SLOTS - 1)),
            "during recovery": self._kill_in_recovery,
            "a standby, too": self._kill_standby,
            "a rank is paused": self._pause,
            "one stopped, one killed": self._stop_and_kill,
            "a supervisor is killed": lambda: self._end_host(supervisor=True),
            "a host is lost": lambda: self._end_host(supervisor=False),
        }[fault]()

    def _possible(self, fault: str) -> bool:
        return fault != "any of these" and self._outcome.where in FAULTS[fault]

    def _choose_spared(self) -> None:
        view, members = self._job.complete()
        living = sorted(members & set(self._job.ranks()))  # others have been killed since
        if view > self._spared_view and living:
            self._spared, self._spared_view = self._random.choice(living), view

    def _victims(self) -> list[int]:
        return sorted(pid for pid in self._job.ranks() if pid != self._spared)

    def _kill(self, count: int) -> list[int]:
        victims = self._victims()
        chosen = self._random.sample(victims, min(count, len(victims)))
        self._note_kill()
        for pid in chosen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return chosen

    def _note_kill(self) -> None:
        view = max((event["view"] for event in self._job.events()), default=0)
        self.killed_at.append((time.monotonic(), view))

    def _kill_in_recovery(self) -> None:
        self._kill(1)
        for _ in range(self._random.randint(1, 3)):
            time.sleep(self._random.uniform(0, 0.3))
            self._kill(1)

    def _kill_standby(self) -> None:
        before = set(self._job.ranks())
        self._kill(1)
        new: list[int] = []

        def started() -> bool:
            new[:] = [pid for pid in self._job.ranks() if pid not in before]
            return bool(new)

        if self._job.wait(started):
            time.sleep(self._random.uniform(0, 0.6))  # while it imports, waits or joins
            with contextlib.suppress(ProcessLookupError):
                os.kill(new[0], signal.SIGKILL)

    def _pause(self) -> None:
        pid = self._random.choice(self._job.ranks())
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(self._random.uniform(0.05, EVICT_S / 2))
            os.kill(pid, signal.SIGCONT)

    def _stop_and_kill(self) -> None:
        victims = self._victims()
        if len(victims) < 2:
            return
        stopped, killed = self._random.sample(victims, 2)
        with contextlib.suppress(ProcessLookupError):
            os.kill(stopped, signal.SIGSTOP)
            time.sleep(self._random.uniform(0, 0.1))
        with contextlib.suppress(ProcessLookupError):
            os.kill(killed, signal.SIGKILL)
        time.sleep(EVICT_S + 2)
        with contextlib.suppress(ProcessLookupError):  # no rank waited for it
            os.kill(stopped, signal.SIGCONT)

    def _end_host(self, *, supervisor: bool) -> None:
        spared = self._job.host_of(self._spared)
        pids = [pid for pid in self._victims() if self._job.host_of(pid) != spared]
        guards = {self._guard_of(pid) for pid in pids} - {0}
        for guard in guards:
            self._note_kill()
            ended = children_of(guard) if supervisor else [guard]
            for pid in ended:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _guard_of(self, pid: int) -> int:
        """The launcher's direct child above a process."""
        with contextlib.suppress(OSError, StopIteration):
            while True:
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                parent = next(int(line.split()[1]) for line in lines if line.startswith("PPid:"))
                if parent == self._job.launcher.process.pid:
                    return pid
                if parent <= 1:
                    return 0
                pid = parent
        return 0


def run_elastic(
    fault: str, where: str, seed: int, folder: Path, hosts: Sequence[str]
) -> ElasticOutcome:
    """Run a job from a seed, inject faults, and check what it leaves behind."""
    chosen = random.Random(seed)
    outcome = ElasticOutcome(fault, where, seed)
    prefix, flags = _placement(hosts, where == "two hosts")
    flags += ["--min-np", 1, "--max-np", SLOTS]
    if fault in STOPPING:
        flags += ["--evict-seconds", EVICT_S]
    flags += ["--blacklist-cooldown-range", 0.5, 1]
    program = (sys.executable, PROGRAM, folder, seed, chosen.choice([1, 1, 3]))
    with Launcher(*flags, *program, prefix=prefix, env={"OMP_NUM_THREADS": "1"}) as launcher:
        job = _Job(launcher, folder, hosts)
        _strike_and_end(job, outcome, chosen)
    _look(job.events(), folder, outcome)
    return outcome


def _strike_and_end(job: _Job, outcome: ElasticOutcome, chosen: random.Random) -> None:
    strikes = _Strikes(job, outcome, chosen)
    if not job.wait(lambda: len(job.complete()[1]) > 0):
        outcome.wrong.append("it does not begin")
    else:
        for _ in range(chosen.randint(1, 3)):
            time.sleep(chosen.uniform(0, 1.0))
            strikes.strike(outcome.fault)
        full = chosen.random() < 0.5
        if full and not job.wait(lambda: len(job.complete()[1]) == SLOTS):
            outcome.wrong.append(f"it does not come back to {SLOTS} ranks")
    (job.folder / "finish").touch()
    try:
        _, errors = job.launcher.process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        outcome.wrong.append("it does not end")
        return
    text = errors.decode(errors="replace")
    if job.launcher.process.returncode != 0:
        outcome.wrong.append(f"status {job.launcher.process.returncode}: {text[-1500:]}")
    if "Traceback" in text:
        outcome.wrong.append(f"a traceback: {text[-1500:]}")
    if left := job.launcher.processes():
        outcome.wrong.append(f"processes are left: {left}")
    for when, view in strikes.killed_at:
        after = [e["time"] for e in job.events() if e["event"] == "commit" and e["view"] > view]
        if after:
            outcome.recoveries.append(min(after) - when)


def _look(events: Sequence[Event], folder: Path, outcome: ElasticOutcome) -> None:
    done = [json.loads(file.read_text()) for file in folder.glob("done.*[0-9]")]
    if not done:
        outcome.wrong.append("no rank came to the end")
        return
    if any(one != done[0] for one in done):
        outcome.wrong.append("the ranks end differently")
    if not done[0]["counts"]:
        outcome.wrong.append("a sample is not in the model as often as it should be")
    outcome.views, outcome.steps, outcome.bits = (
        done[0][name] for name in ("views", "steps", "bits")
    )
    committed: dict[int, int] = {}  # by view, the last commit that a rank has seen confirmed
    for event in events:
        if event["event"] == "commit":
            committed[event["view"]] = max(event["step"], committed.get(event["view"], 0))
    for event in events:
        before = [step for view, step in committed.items() if view < event["view"]]
        if event["event"] == "begin" and event["step"] < max(before, default=0):
            outcome.wrong.append(
                f"view {event['view']} goes back to step {event['step']}, committed was "
                f"{max(before)}"
            )


def replay(
    outcomes: Sequence[ElasticOutcome], folder: Path, hosts: Sequence[str], over_network: bool
) -> list[str]:
    """Repeat the training of jobs' views without faults; return the hashes of the weights."""
    jobs = folder / "jobs"
    with jobs.open("w") as file:
        for one in outcomes:
            views = [[step, [hosts.index(name) for name in names]] for step, names in one.views]
            file.write(json.dumps({"seed": one.seed, "views": views, "steps": one.steps}) + "\n")
    prefix, flags = _placement(hosts, over_network)
    ended = subprocess.run(
        [
            *prefix,
            *launcher_command(*flags, "--min-np", SLOTS, sys.executable, REPLAY, jobs, len(hosts)),
        ],
        env=environment({"OMP_NUM_THREADS": "1"}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S + 5 * len(outcomes),
    )
    if ended.returncode != 0:
        raise RuntimeError(f"the replay fails: {ended.stderr[-3000:]}")
    return [line.rpartition(":")[2] for line in ended.stdout.splitlines()]


def _placement(hosts: Sequence[str], over_network: bool) -> tuple[list[str], list[object]]:
    """The command prefix and the launcher's flags for a job on these hosts."""
    slots = SLOTS // len(hosts)
    flags = ["-np", SLOTS, "-H", ",".join(f"{host}:{slots}" for host in hosts)]
    if not over_network:
        return [], flags
    return ["ip", "netns", "exec", hosts[0]], [*flags, "--remote-shell", namespaces.REMOTE_SHELL]


@contextlib.contextmanager
def _network(needed: bool) -> Iterator[NetworkHosts | None]:
    if not needed:
        yield None
        return
    with NetworkHosts(2) as hosts:
        yield hosts


def run_batch(
    plan: Sequence[tuple[str, str, int]],
    jobs: int,
    report: Callable[[ElasticOutcome], None] = lambda outcome: None,
) -> list[ElasticOutcome]:
    """Run jobs, several at a time, and compare each with its replay."""
    with (
        tempfile.TemporaryDirectory() as temporary,
        _network(any(where == "two hosts" for _, where, _ in plan)) as network,
        ThreadPoolExecutor(jobs) as pool,
    ):
        hosts = {"one host": LOCAL[:1], "two names": LOCAL}
        if network is not None:
            hosts["two hosts"] = tuple(network.names)

        def run(one: tuple[str, str, int]) -> ElasticOutcome:
            folder = Path(temporary) / str(one[2])
            folder.mkdir()
            outcome = run_elastic(*one, folder, hosts[one[1]])
            report(outcome)
            return outcome

        outcomes = list(pool.map(run, plan))
        for where, names in hosts.items():
            ended = [one for one in outcomes if one.bits and one.where == where]
            bits = replay(ended, Path(temporary), names, where == "two hosts") if ended else []
            for one, expected in zip(ended, bits, strict=True):
                if one.bits != expected:
                    one.wrong.append("its weights are not those of the replay without faults")
    return outcomes


def plan_of(count: int, seed: int, over_hosts: bool) -> list[tuple[str, str, int]]:
    """Each kind of fault in turn, with seeds that continue those of the previous batch."""
    kinds = [kind for kind in KINDS if over_hosts or kind[1] != "two hosts"]
    return [(*kinds[number % len(kinds)], number) for number in range(seed, seed + count)]
