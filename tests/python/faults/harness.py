"""Runs a scenario with real processes, and checks its result."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from support.namespaces import NetworkHosts
from support.rank_processes import RankProcesses
from support.shared_files import shared_files

from faults.scenarios import PHASES, SILENCE_LIMIT_S, STALL_LIMIT_S, START_TIMEOUT_S, Scenario

HERE = Path(__file__).parent
RANKS = 3
HOST_OF = (0, 0, 1)
SLOW = "30mbit"  # a gradient takes longer than the silence timeout
PATIENCE_S = 30.0  # longer than anything here may take; a rank that exceeds it hangs


@dataclass
class Outcome:
    """The result of one run of a scenario."""

    scenario: Scenario
    victim: int
    slowest_s: float = 0.0
    hangs: list[str] = field(default_factory=list)
    leaks: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)  # late, or the wrong error

    @property
    def good(self) -> bool:
        """Whether everything was as expected."""
        return not (self.hangs or self.leaks or self.wrong)


def build_shim(folder: Path) -> Path:
    """Compile the shim that is preloaded into victims."""
    library = folder / "shim.so"
    command = ["cc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, HERE / "shim.c"]
    subprocess.run([*command, "-ldl"], check=True)
    return library


def run(scenario: Scenario, victim: int, shim: Path) -> Outcome:
    """Run a scenario once and check it. It may define its victim; otherwise any rank."""
    outcome = Outcome(scenario, victim if scenario.victim is None else scenario.victim)
    shared_before = shared_files()
    with ExitStack() as stack:
        hosts = stack.enter_context(NetworkHosts(2)) if scenario.over_hosts else None
        files = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder = files / "ranks"
        folder.mkdir()
        if hosts is not None and scenario.network == "slow":
            hosts.limit_rate(SLOW)
        with _start(scenario, outcome.victim, shim, folder, hosts) as job:
            strangers = int(scenario.variables.get("FAULT_STRANGERS", "0"))
            with _strangers(job, strangers):
                if hosts is not None and scenario.action == "network":
                    _strike(scenario, outcome, job, hosts, files)
                reports = _await(scenario, job, outcome)
            _judge(scenario, outcome, reports, job, _fault_time(files / "fault"))
            if left := job.survivors():
                outcome.leaks.append(f"processes {left}")
            if left := os.listdir(folder):
                outcome.leaks.append(f"files {left}")
        if job.call(lambda: _accepts(job.address, job.port)):
            outcome.leaks.append(f"port {job.port} is open still")
    if left := shared_files() - shared_before:
        outcome.leaks.append(f"in /dev/shm: {sorted(left)}")
    return outcome


def _accepts(address: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((address, port)) == 0


def _start(
    scenario: Scenario, victim: int, shim: Path, folder: Path, hosts: NetworkHosts | None
) -> RankProcesses:
    everybody = {
        "HOROSCALE_START_TIMEOUT": str(START_TIMEOUT_S),
        "FAULT_FILE": str(folder.parent / "fault"),
        "FAULT_DONE": str(folder.parent / "done"),
    }
    if scenario.network:
        everybody["HOROSCALE_NETWORK_TIMEOUT_SECONDS"] = str(SILENCE_LIMIT_S)
    else:
        everybody["HOROSCALE_STALL_SHUTDOWN_TIME_SECONDS"] = str(STALL_LIMIT_S)
    own = {
        **scenario.variables,
        "LD_PRELOAD": str(shim),
        "FAULT_CALL": scenario.call,
        "FAULT_ACTION": scenario.action,
    }
    return RankProcesses(
        RANKS,
        HERE / "rank.py",
        scenario.phase,
        scenario.action,
        str(victim if not scenario.harmless else -1),
        folder=folder,
        variables=everybody,
        variables_of={victim: own},
        stderr_of={victim: scenario.variables["FAULT_STDERR"]}
        if "FAULT_STDERR" in scenario.variables
        else {},
        hosts=hosts,
        host_of=HOST_OF,
    )


@contextmanager
def _strangers(job: RankProcesses, count: int) -> Iterator[None]:
    """Connections to the job's store that send nothing, or an incomplete message."""
    with ExitStack() as stack:
        for number in range(count):
            connect = partial(socket.create_connection, (job.address, job.port))
            stranger = stack.enter_context(job.call(connect))
            stranger.sendall(b"HOROAUTH"[: number % 9])
        yield


def _strike(
    scenario: Scenario, outcome: Outcome, job: RankProcesses, hosts: NetworkHosts, files: Path
) -> None:
    """Inject the network fault while the victim waits for it."""
    deadline = time.monotonic() + PATIENCE_S
    while not (files / "fault").exists():
        if time.monotonic() > deadline or job.processes[outcome.victim].poll() is not None:
            outcome.wrong.append(f"no moment for the fault; {job.errors(outcome.victim)}")
            break
        time.sleep(0.005)  # another process creates the file
    host = HOST_OF[outcome.victim]
    if scenario.network == "one way":
        hosts.drop_towards(host)
    else:
        hosts.pull_cable(host)
    if scenario.network == "half open":
        job.processes[outcome.victim].kill()
        job.processes[outcome.victim].wait()
        hosts.plug_in(host)
    (files / "done").touch()


def _await(scenario: Scenario, job: RankProcesses, outcome: Outcome) -> dict[int, dict[str, Any]]:
    """The ranks' reports at the end. A stopped victim continues when the others are done."""
    reports: dict[int, dict[str, Any]] = {}
    order = [rank for rank in range(RANKS) if rank != outcome.victim] + [outcome.victim]
    for rank in order:
        process = job.processes[rank]
        if rank == outcome.victim and scenario.action == "stop":
            process.send_signal(signal.SIGCONT)
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            outcome.hangs.append(f"rank {rank}")
            continue
        assert process.stdout is not None
        if text := process.stdout.read():
            reports[rank] = json.loads(text)
    return reports


def _judge(
    scenario: Scenario,
    outcome: Outcome,
    reports: dict[int, dict[str, Any]],
    job: RankProcesses,
    struck_at: float | None,
) -> None:
    for rank, report in reports.items():
        outcome.leaks += [
            f"rank {rank} has {count} {kind} more than before"
            for kind, count in report["left"].items()
            if count > 0
        ]
    if scenario.harmless:
        outcome.wrong += [f"rank {rank}: no report" for rank in set(range(RANKS)) - set(reports)]
        outcome.wrong += [f"{rank}: {r['message']}" for rank, r in reports.items() if "error" in r]
        return
    if struck_at is None:  # then use the victim's own report, if it survives
        struck_at = reports.get(outcome.victim, {}).get("raised_at")
    for rank in set(range(RANKS)) - {outcome.victim}:
        if rank not in reports:
            outcome.wrong.append(f"rank {rank} said nothing; {job.errors(rank)[-500:]}")
        else:
            outcome.wrong += [
                f"rank {rank}: {problem}"
                for problem in _problems(scenario, outcome, reports[rank], struck_at)
            ]
    words = scenario.victim_raises
    said = f"{reports.get(outcome.victim)} {job.errors(outcome.victim)[-500:]}"
    if words not in said:
        outcome.wrong.append(f"the victim does not say {words!r}, but {said}")


def _problems(
    scenario: Scenario, outcome: Outcome, report: dict[str, Any], struck_at: float | None
) -> Iterable[str]:
    if "error" not in report:
        yield "no error"
        return
    if struck_at is not None:
        # On a busy machine some ranks call init() only after another has failed.
        took = report["raised_at"] - max(struck_at, report["began_at"])
        outcome.slowest_s = max(outcome.slowest_s, took)
        if took > scenario.limit_s:
            yield f"its error came after {took:.2f} s"
    named = f"{outcome.victim}" in re.findall(r"\d+", report["message"])
    if scenario.names_victim and not named:
        yield f"its error does not name the victim: {report['message']}"
    if report["error"] == "RankFailedError":
        if report["ranks"] != [outcome.victim]:
            yield f"its error names ranks {report['ranks']}: {report['message']}"
        if report["process_set"] != 0 or not report["tensor"]:
            yield f"its error names set {report['process_set']}, tensor {report['tensor']!r}"
        if scenario.phase in PHASES[2:] and not report.get("others_go_on"):
            yield "the set without the victim does not go on"
    elif scenario.phase in PHASES[2:]:
        yield f"{report['error']}: {report['message']}"


def _fault_time(path: Path) -> float | None:
    """The monotonic time of the fault; None if it was not recorded."""
    return int(path.read_text()) / 1e9 if path.exists() else None
