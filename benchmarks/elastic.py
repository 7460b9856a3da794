"""Measures how long the ranks of an elastic job pause: deaths, lost hosts, added hosts.

    python benchmarks/elastic.py --only killed --rounds 50 --json build/elastic.json

For each fault it measures the time until the survivors have finished their first step without the
lost ranks. Replacements then join before the next fault. The model has 36 MB and an optimizer with
momentum, and each step commits. A table of the phases of a recovery follows; --picture draws it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "tests" / "python"), str(ROOT / "tests" / "python" / "integration")]
from folders import temporary_folder  # noqa: E402
from launcher_process import Launcher, environment  # noqa: E402
from support import namespaces  # noqa: E402
from support.namespaces import NetworkHosts  # noqa: E402

RANK = Path(__file__).with_name("elastic_rank.py")
TORCHRUN_RANK = Path(__file__).with_name("elastic_torchrun_rank.py")
COMMIT = Path(__file__).with_name("elastic_commit.py")
PATIENCE_S = 120.0
EVICT_S = 2.0
NETWORK_S = 5
Event = dict[str, Any]


class StuckError(SystemExit):
    """A job did not continue within PATIENCE_S."""


# Each phase ends with an event on the last survivor.
PHASES = {
    "met": "the survivors' operations fail",
    "left": "they end the old job",
    "given": "all have reported; after 50 ms for further deaths they get the view",
    "entered": "they meet again; process sets are registered",
    "restored": "they go back to the commit",
    "synchronized": "they agree that nothing has to be sent",
    "step": "their first step",
}
JOINING = {
    "met": "the last member is interrupted",
    "left": "they end the old job",
    "given": "all have reported; they and the newcomer get the view",
    "entered": "they meet; process sets are registered",
    "synchronized": "the newcomer has the commit",
    "step": "their first step, all together",
}


class Noted:
    """A running job whose processes record events in files of a folder."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self.process = process

    def events(self) -> list[Event]:
        found = []
        for file in self.folder.glob("log.*"):
            found += [json.loads(line) for line in file.read_text().split("\n")[:-1]]
        return sorted(found, key=lambda event: float(event["time"]))

    def wait(self, met: Callable[[list[Event]], Any]) -> Any:
        """Return what `met` finds in the events, as soon as it finds something."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            events = self.events()
            if found := met(events):
                return found
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise StuckError("the job does not go on")
            time.sleep(0.02)

    def full(self, size: int, after: int = 0) -> tuple[int, dict[int, int]]:
        """Wait for a view of this many ranks that has made five steps: its number, PIDs by rank."""

        def met(events: list[Event]) -> Any:
            steps = [e for e in events if e["event"] == "step" and e["made"] == 5]
            newest = max((e["view"] for e in steps), default=0)
            ranks = {e["rank"]: e["pid"] for e in steps if e["view"] == newest}
            return newest > after and len(ranks) == size and (newest, ranks)

        return self.wait(met)  # type: ignore[no-any-return]

    def first_step(self, view: int, size: int | None = None) -> list[Event]:
        """Wait for the first step of all ranks in a view after this one; these events."""

        def met(events: list[Event]) -> Any:
            steps = [e for e in events if e["event"] == "step" and e["made"] == 1]
            later = [e for e in steps if e["view"] > view and size in (None, e["size"])]
            first = [e for e in later if e["view"] == later[0]["view"]]
            return first and len(first) == first[0]["size"] and first

        return self.wait(met)  # type: ignore[no-any-return]


class Job(Noted):
    """A job of horoscalerun."""

    def __init__(self, folder: Path, *flags: object, **options: Any) -> None:
        cooldown = ("--blacklist-cooldown-range", 0.01, 0.02)  # slots fail often here
        program = (sys.executable, RANK, folder, "--megabytes", options.pop("megabytes"))
        variables = {"OMP_NUM_THREADS": "1", **options.pop("env", {})}
        self.launcher = Launcher(*flags, *cooldown, *program, env=variables, **options)
        super().__init__(folder, self.launcher.process)

    def end(self) -> None:
        (self.folder / "finish").touch()
        status, _, errors = self.launcher.finish()
        if status != 0:
            raise SystemExit(errors.decode())


def kill(pids: Sequence[int], signum: int = signal.SIGKILL) -> float:
    now = time.monotonic()
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signum)
    return now


def phases_of(events: Sequence[Event], struck: float, steps: Sequence[Event]) -> dict[str, float]:
    """The seconds of each phase of a recovery that ended with these first steps."""
    pids, view = {e["pid"] for e in steps}, steps[0]["view"]
    end = max(e["time"] for e in steps)
    during = [e for e in events if e["pid"] in pids and struck <= e["time"] <= end]
    found, before = {}, struck
    for name in PHASES:
        ends = [e["time"] for e in during if e["event"] == name]
        if name in ("entered", "restored", "synchronized"):
            ends = [e["time"] for e in during if e["event"] == name and e["view"] == view]
        at = max(ends, default=before)
        found[name] = at - before
        before = at
    return found


def killed(
    rounds: int, megabytes: float, seconds: list[float], phases: list[dict[str, float]]
) -> None:
    """One of three ranks is killed, each rank in turn."""
    with temporary_folder() as folder:
        job = Job(folder, "-np", 3, "--min-np", 2, "--max-np", 3, megabytes=megabytes)
        with job.launcher:
            view = 0
            for number in range(rounds):
                view, pids = job.full(3, view)
                struck = kill([pids[number % 3]])
                steps = job.first_step(view)
                seconds.append(max(e["time"] for e in steps) - struck)
                phases.append(phases_of(job.events(), struck, steps))
                view = steps[0]["view"]
            job.end()


def beside_torchrun(
    rounds: int,
    megabytes: float,
    ours: list[float],
    theirs: list[float],
    phases: list[dict[str, float]],
) -> None:
    """One of three ranks is killed, each time in a new job, alternately ours and torchrun's."""
    for number in range(rounds):
        killed(1, megabytes, ours, phases)
        with temporary_folder() as folder:
            flags = ("--standalone", "--nproc-per-node", "3", "--max-restarts", "3")
            program = (*flags, TORCHRUN_RANK, folder, "--megabytes", megabytes)
            process = subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", *map(str, program)],
                env=environment({"OMP_NUM_THREADS": "1"}),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                job = Noted(folder, process)
                view, pids = job.full(3)
                struck = kill([pids[number % 3]])
                try:
                    first = job.first_step(view)
                    theirs.append(max(e["time"] for e in first) - struck)
                except StuckError:
                    theirs.append(float("inf"))  # it never recovered
            finally:
                process.terminate()
                process.wait(PATIENCE_S)


def stopped(rounds: int, megabytes: float, seconds: list[float]) -> None:
    """One of four ranks is stopped, another one killed."""
    with temporary_folder() as folder:
        flags = ("-np", 4, "--min-np", 2, "--max-np", 4, "--evict-seconds", EVICT_S)
        job = Job(folder, *flags, megabytes=megabytes)
        with job.launcher:
            view = 0
            for number in range(rounds):
                view, pids = job.full(4, view)
                kill([pids[number % 4]], signal.SIGSTOP)
                struck = kill([pids[(number + 1) % 4]])
                steps = job.first_step(view)
                seconds.append(max(e["time"] for e in steps) - struck)
                view = steps[0]["view"]
            job.end()


def host_lost(rounds: int, megabytes: float, seconds: list[float], *, silent: bool) -> None:
    """One of two hosts of two ranks dies: its kernel closes its connections, or it is silent."""
    with temporary_folder() as folder, NetworkHosts(2) as hosts:
        listed = ",".join(f"{name}:2" for name in hosts.names)
        flags = ("--remote-shell", namespaces.REMOTE_SHELL, "-np", 4, "--min-np", 2, "--max-np", 4)
        flags += ("--evict-seconds", EVICT_S, "-H", listed)
        prefix = ("ip", "netns", "exec", hosts.names[0])
        variables = {"HOROSCALE_NETWORK_TIMEOUT_SECONDS": str(NETWORK_S)} if silent else {}
        job = Job(folder, *flags, megabytes=megabytes, prefix=prefix, env=variables)
        with job.launcher:
            view = 0
            for _ in range(rounds):
                view, _pids = job.full(4, view)
                if silent:  # like a power failure: the host no longer answers
                    hosts.pull_cable(1)
                    dead = hosts.processes(1)
                    struck = kill(dead, signal.SIGSTOP)
                else:
                    struck = kill(hosts.processes(1))
                steps = job.first_step(view)
                seconds.append(max(e["time"] for e in steps) - struck)
                view = steps[0]["view"]
                if silent:
                    kill(dead)
                    hosts.plug_in(1)
            job.end()


def come_and_go(
    rounds: int,
    megabytes: float,
    added: list[float],
    drained: list[float],
    phases: list[dict[str, float]],
) -> None:
    """A host is added, and drained: how long the members pause, each time.

    `phases` are those of the additions.
    """
    with temporary_folder() as folder, ExitStack() as stack:
        hosts = folder / "hosts"

        def discover(text: str) -> None:
            beside = hosts.with_suffix(".new")
            beside.write_text(text)
            beside.replace(hosts)

        discover("localhost:2\n")
        flags = ("--min-np", 2, "--max-np", 3, "--host-discovery-script", f"cat {hosts}")
        job = Job(folder, *flags, megabytes=megabytes)
        stack.enter_context(job.launcher)
        view, _ = job.full(2)
        for _ in range(rounds):
            for text, size, into in (
                ("localhost:2\n127.0.0.1:1\n", 3, added),
                ("localhost:2\n", 2, drained),
            ):
                discover(text)
                steps = job.first_step(view, size)
                view = steps[0]["view"]
                events = job.events()
                stopped = []
                for one in steps:
                    left = [
                        e["time"]
                        for e in events
                        if e["event"] == "met"
                        and e["pid"] == one["pid"]
                        and 0 < e["view"] < one["view"]
                    ]
                    if left:  # not of a rank that has just joined
                        into.append(one["time"] - left[-1])
                        stopped.append(left[-1])
                if into is added:
                    phases.append(phases_of(events, min(stopped), steps))
                job.full(size, view - 1)
        job.end()


def commits(rounds: int) -> dict[str, list[float]]:
    """Commits of 100 MB on one rank, each written to disk while the rank continues."""
    with temporary_folder() as folder:
        flags = ("-np", 1, "--checkpoint-dir", folder / "all", "--checkpoint-every", 1)
        with Launcher(*flags, sys.executable, COMMIT, rounds, folder) as launcher:
            status, _, errors = launcher.finish()
            if status != 0:
                raise SystemExit(errors.decode())
        found: dict[str, list[float]] = json.loads((folder / "seconds").read_text())
        return found


def row(name: str, seconds: Sequence[float]) -> str:
    ordered = sorted(seconds)
    p95 = ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))]
    return (
        f"| {name} | {len(ordered)} | {statistics.median(ordered) * 1e3:,.0f} ms | "
        f"{p95 * 1e3:,.0f} ms | {ordered[-1] * 1e3:,.0f} ms |"
    )


def print_phases(begin: str, phases: Sequence[dict[str, float]], names: dict[str, str]) -> None:
    print(f"\n| from {begin} | until | takes | p95 |\n|---|---|---|---|")
    end = 0.0
    for name, what in names.items():
        took = sorted(one[name] for one in phases)
        median = statistics.median(took)
        end += median
        p95 = took[min(len(took) - 1, round(0.95 * len(took)))]
        print(f"| {end * 1e3:.0f} ms | {what} | {median * 1e3:.0f} ms | {p95 * 1e3:.0f} ms |")


def draw(phases: Sequence[dict[str, float]], path: Path) -> None:
    """Draw the median recovery as a bar of its phases."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "recovery"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 2.6), layout="constrained")
    left = 0.0
    for index, (name, what) in enumerate(PHASES.items()):
        took = statistics.median(one[name] for one in phases) * 1e3
        axes.barh(0, took, left=left, color=f"C{index}", label=f"{what}: {took:.0f} ms")
        left += took
    axes.set_xlabel("milliseconds since the kill")
    axes.set_yticks([])
    figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


KILLED = "a rank of 3 is killed"
STOPPED = f"one of 4 is stopped, one killed, --evict-seconds {EVICT_S:g}"
DIES = "a host of 2 dies"
SILENT = f"a host of 2 falls silent, NETWORK_TIMEOUT_SECONDS={NETWORK_S}"
TORCHRUN = "the same of torchrun, whose ranks all start anew"
ADDED, DRAINED = "a host is added", "a host is drained"
WHAT = ("killed", "torchrun", "stopped", "host", "silent", "hosts", "commit")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(WHAT), help=f"some of {', '.join(WHAT)}")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--megabytes", type=float, default=36, help="size of the model")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures of every round"
    )
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw a recovery")
    parser.add_argument("--smoke", action="store_true", help="smoke test: one short round")
    arguments = parser.parse_args()
    for name in ("json", "picture"):
        if (path := getattr(arguments, name)) is not None:
            setattr(arguments, name, path.absolute())
    os.chdir(ROOT / "tests")  # the launcher imports the installed package, not the sources
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))  # and ends its jobs
    rounds = 1 if arguments.smoke else arguments.rounds
    size = 1.0 if arguments.smoke else arguments.megabytes
    phases: list[dict[str, float]] = []
    joining: list[dict[str, float]] = []
    measured: dict[str, list[float]] = {}
    begin = {
        "killed": lambda: killed(rounds, size, measured.setdefault(KILLED, []), phases),
        "torchrun": lambda: beside_torchrun(
            rounds,
            size,
            measured.setdefault(KILLED, []),
            measured.setdefault(TORCHRUN, []),
            phases,
        ),
        "stopped": lambda: stopped(rounds, size, measured.setdefault(STOPPED, [])),
        "host": lambda: host_lost(rounds, size, measured.setdefault(DIES, []), silent=False),
        "silent": lambda: host_lost(rounds, size, measured.setdefault(SILENT, []), silent=True),
        "hosts": lambda: come_and_go(
            rounds, size, measured.setdefault(ADDED, []), measured.setdefault(DRAINED, []), joining
        ),
        "commit": lambda: measured.update(commits(rounds)),
    }
    try:
        for what in arguments.only.split(","):
            if what not in begin:
                parser.error(f"--only: {what!r} is none of {', '.join(WHAT)}")
            begin[what]()
    finally:  # partial results, if the benchmark was terminated
        print("| | count | median | p95 | longest |\n|---|---|---|---|---|")
        for name, seconds in measured.items():
            if seconds:
                print(row(name, seconds))
        if phases:
            print_phases("the kill", phases, PHASES)
            if arguments.picture:
                draw(phases, arguments.picture)
        if joining:
            print_phases("the commit", joining, JOINING)
        if arguments.json:
            arguments.json.write_text(json.dumps({"seconds": measured, "phases": phases}, indent=1))


if __name__ == "__main__":
    main()
