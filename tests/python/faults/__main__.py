"""Runs faults in real and in simulated jobs and prints the results as a table."""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.table import Table
from support import namespaces
from support.elastic_simulation import simulate

from faults.elastic import SLOTS, ElasticOutcome, plan_of, run_batch
from faults.harness import RANKS, Outcome, build_shim, run
from faults.scenarios import SCENARIOS, Scenario

ROOT = Path(__file__).parents[3]
ELASTIC_BATCH = 20  # their replays run as one job


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    parser.add_argument("--real", type=int, default=len(SCENARIOS), help="runs with processes")
    parser.add_argument("--simulated", type=int, default=10_000, help="runs in the simulator")
    parser.add_argument("--elastic", type=int, default=200, help="elastic jobs with processes")
    parser.add_argument("--seed", type=int, default=1, help="of the victims; where seeds begin")
    parser.add_argument("--only", default="", help="real runs whose name contains this")
    parser.add_argument("--jobs", type=int, default=2, help="real runs at the same time")
    parser.add_argument(
        "--simulator",
        type=Path,
        default=ROOT / "build/release/tests/cpp/faults",
        help="its program",
    )
    return parser.parse_args(arguments)


def run_real(count: int, only: str, seed: int, jobs: int) -> list[Outcome]:
    """Each scenario in turn, with alternating victims, until `count` have been run."""
    why_not = namespaces.why_not()
    if why_not is not None:
        print(f"without faults between hosts: {why_not}", file=sys.stderr)
    possible = [one for one in SCENARIOS if why_not is None or not one.over_hosts]
    chosen = [one for one in possible if only in one.name]
    victims = random.Random(seed)
    plan = [(chosen[i % len(chosen)], victims.randrange(RANKS)) for i in range(count)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        shim = build_shim(Path(folder))
        return list(pool.map(lambda item: run(*item, shim), plan))


def real_table(outcomes: Iterable[Outcome]) -> Table:
    cells: dict[Scenario, list[Outcome]] = {one: [] for one in SCENARIOS}
    for outcome in outcomes:
        cells[outcome.scenario].append(outcome)
    table = Table(title=f"real jobs of {RANKS} processes")
    texts = ("fault", "phase", "ranks on")
    for column in (*texts, "runs", "hangs", "leaks", "wrong", "slowest", "allowed"):
        table.add_column(column, justify="left" if column in texts else "right")
    for scenario, runs in cells.items():
        if not runs:
            continue
        table.add_row(
            scenario.fault,
            scenario.phase,
            "two hosts" if scenario.over_hosts else "one host",
            str(len(runs)),
            str(sum(bool(one.hangs) for one in runs)),
            str(sum(bool(one.leaks) for one in runs)),
            str(sum(bool(one.wrong) for one in runs)),
            f"{max(one.slowest_s for one in runs):.2f} s",
            f"{scenario.limit_s:.1f} s",
            style="" if all(one.good for one in runs) else "bold red",
        )
    return table


def run_simulated(program: Path, count: int, seed: int) -> tuple[Table, bool]:
    """The table of the simulator's counts, and whether it found no error."""
    variables = {"HOROSCALE_FAULT_SEEDS": str(count), "HOROSCALE_FAULT_FIRST_SEED": str(seed)}
    ended = subprocess.run(
        [program], env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True, check=False
    )
    counts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for line in ended.stdout.splitlines():
        if line.startswith("simulated\t"):
            _, fault, phase, runs, struck = line.split("\t")
            counts[fault, phase][0] += int(runs)
            counts[fault, phase][1] += int(struck)
    table = Table(title="simulated jobs of 2 to 6 ranks and up to 4 process sets")
    for column in ("fault", "phase", "runs", "struck"):
        table.add_column(column, justify="left" if column in ("fault", "phase") else "right")
    for (fault, phase), (runs, struck) in counts.items():
        table.add_row(fault, phase, str(runs), str(struck))
    if ended.returncode != 0:
        print(ended.stdout[-4000:])
    return table, ended.returncode == 0


def elastic_table(outcomes: Iterable[ElasticOutcome]) -> Table:
    """The results of elastic jobs, by kind of fault."""
    cells: dict[tuple[str, str], list[ElasticOutcome]] = defaultdict(list)
    for one in outcomes:
        cells[one.fault, one.where].append(one)
    table = Table(title=f"elastic jobs of {SLOTS} processes: weights as without faults?")
    for column in ("fault", "ranks on", "jobs", "strikes", "views", "wrong", "median", "slowest"):
        table.add_column(column, justify="left" if column in ("fault", "ranks on") else "right")
    for (fault, where), jobs in sorted(cells.items()):
        seconds = [second for one in jobs for second in one.recoveries]
        table.add_row(
            fault,
            where,
            str(len(jobs)),
            str(sum(len(one.strikes) for one in jobs)),
            str(sum(len(one.views) for one in jobs)),
            str(sum(bool(one.wrong) for one in jobs)),
            f"{statistics.median(seconds):.2f} s" if seconds else "",
            f"{max(seconds):.2f} s" if seconds else "",
            style="bold red" if any(one.wrong for one in jobs) else "",
        )
    return table


def run_elastic_jobs(console: Console, options: argparse.Namespace) -> bool:
    """Runs real elastic jobs in batches; returns whether all behaved as expected."""
    over_hosts = namespaces.why_not() is None
    outcomes: list[ElasticOutcome] = []
    for first in range(0, options.elastic, ELASTIC_BATCH):
        count = min(ELASTIC_BATCH, options.elastic - first)
        plan = plan_of(count, options.seed + first, over_hosts)
        outcomes += run_batch(plan, options.jobs)
    console.print(elastic_table(outcomes))
    for one in outcomes:
        for problem in one.wrong:
            console.print(f"{one.fault}, {one.where}, seed {one.seed}: {problem}", markup=False)
    return not any(one.wrong for one in outcomes)


def run_elastic_simulation(console: Console, options: argparse.Namespace) -> bool:
    """Runs simulated elastic jobs; returns whether all invariants hold."""
    ends, wrong = simulate(range(options.seed, options.seed + options.simulated))
    table = Table(title="simulated elastic jobs of 1 to 9 ranks on up to 5 hosts")
    table.add_column("end")
    table.add_column("jobs", justify="right")
    for end, count in ends.most_common():
        table.add_row(end, str(count))
    console.print(table)
    for problem in wrong:
        console.print(problem, markup=False)
    return not wrong


def main() -> int:
    options = parse(sys.argv[1:])
    console = Console() if sys.stdout.isatty() else Console(width=110)
    good = True
    if options.simulated > 0:
        table, good = run_simulated(options.simulator, options.simulated, options.seed)
        console.print(table)
        good = run_elastic_simulation(console, options) and good
    if options.elastic > 0:
        good = run_elastic_jobs(console, options) and good
    if options.real > 0:
        outcomes = run_real(options.real, options.only, options.seed, options.jobs)
        console.print(real_table(outcomes))
        bad = [one for one in outcomes if not one.good]
        for one in bad:
            for problem in (*one.hangs, *one.leaks, *one.wrong):
                console.print(f"{one.scenario.name}, victim {one.victim}: {problem}", markup=False)
        console.print(
            f"{len(outcomes)} real, {options.simulated} simulated: "
            f"{sum(bool(one.hangs) for one in outcomes)} hang, "
            f"{sum(bool(one.leaks) for one in outcomes)} leak, {len(bad)} not as they should be"
        )
        good = good and not bad
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
