"""Runs the benchmarks, and reports which of the project's aims are reached: `make bench`.

    python benchmarks/report.py --peer-venv .venv-peers --output build/bench

Each benchmark is a separate program, which can also be run alone. Their figures are written to the
output folder as JSON, with plots as PNG and SVG. The machine should have no other load.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import figures
from matplotlib import pyplot
from overlap import share_of_ideal
from rich.console import Console
from rich.table import Table

sys.path.append(str(Path(__file__).parents[1] / "tests" / "python"))
from support.namespaces import why_not

FOLDER = Path(__file__).parent
LARGE = ("64 KiB", "1 MiB", "16 MiB", "64 MiB")
FROM_1_MIB = LARGE[1:]
TASKS = ("perceptron", "convolutions", "transformer")
MODELS = ("resnet50", "vgg16", "bert-base")

Results = Mapping[str, figures.Figures]
TO_16_MIB = ("4 KiB", *LARGE[:3])
OURS = "horoscale"
TORCH = "horoscale-torch"
SHARED = "horoscale-shared"
VIEW = "horoscale-view"


@dataclass(frozen=True)
class Run:
    """One benchmark and its arguments."""

    name: str  # name of the file with its figures
    command: tuple[str, ...]
    smoke: bool = True  # whether the smoke test includes it
    obstacle: Callable[[], str | None] = lambda: None  # why it cannot run here

    def __call__(self, arguments: argparse.Namespace, path: Path) -> None:
        """Run it; it prints its table to the standard output."""
        program, *options = [each.format(output=arguments.output) for each in self.command]
        options += ["--json", str(path)]
        if program in ("allreduce.py", "messages.py", "movement.py"):
            options += ["--peer-venv", str(arguments.peer_venv)]
        if arguments.smoke:
            options.append("--smoke")
        print(f"\n== benchmarks/{program} {' '.join(options)}", flush=True)
        subprocess.run([sys.executable, FOLDER / program, *options], check=True)


LIMITS = "limit,limit-shared,memcpy"
FEW, TWO = ("--rounds", "3"), ("--rounds", "2")
# Without MPICH, which occasionally hangs in Waitall() of that many.
BETWEEN = "4096,65536,1048576,16777216"
BURST = ("--tensors", "160", "--sizes", "4,4096,65536", *FEW)
RUNS = (
    Run("allreduce-2", ("allreduce.py", "--np", "2", "--peers", f"gloo,mpich,openmpi,{LIMITS}")),
    Run("allreduce-4", ("allreduce.py", "--np", "4", *FEW, "--peers", f"gloo,mpich,{LIMITS}")),
    Run(
        "allreduce-8",
        ("allreduce.py", "--np", "8", *FEW, "--sizes", "4096,1048576,16777216", "--peers", "gloo"),
        smoke=False,
    ),
    Run(
        "allreduce-bfloat16",
        ("allreduce.py", "--np", "2", *FEW, "--dtype", "bfloat16", "--peers", "gloo"),
        smoke=False,
    ),
    Run("allreduce-160", ("allreduce.py", "--np", "2", "--peers", "gloo,openmpi", *BURST)),
    Run(
        "allreduce-hosts",
        ("allreduce.py", "--np", "2", "--hosts", "--peers", "gloo,tcp", "--sizes", BETWEEN),
        obstacle=why_not,
    ),
    Run("movement-2", ("movement.py", "--np", "2", *FEW, "--peers", "gloo,mpich")),
    Run("messages", ("messages.py", "--peers", "gloo,mpich,memcpy")),
    Run("torch_distributed", ("torch_distributed.py",)),
    Run("torch_distributed_training", ("torch_distributed_training.py",)),
    Run("gradients", ("gradients.py",)),
    Run("training", ("training.py",)),
    Run("process_sets", ("process_sets.py",)),
    Run("startup", ("startup.py",)),
    Run(
        "overlap",
        ("overlap.py", *TWO, "--rates", "200", "--timelines", "{output}/overlap-steps"),
        smoke=False,
        obstacle=why_not,
    ),
    Run("local_sgd", ("local_sgd.py", *TWO), smoke=False, obstacle=why_not),
)


@dataclass(frozen=True)
class Aim:
    """An aim: `ratio` of the figures of `run`, by round, is at least `least`."""

    run: str
    text: str
    least: float
    ratio: Callable[[figures.Figures], Sequence[float]]


def mean_over(sizes: Sequence[str], peer: str, ours: str) -> Callable[..., Sequence[float]]:
    """The geometric mean over sizes."""
    return lambda measured: figures.mean_ratios([measured[size] for size in sizes], peer, ours)


def mean_over_all(peer: str, ours: str) -> Callable[..., Sequence[float]]:
    """The geometric mean over everything that was measured."""
    return lambda measured: figures.mean_ratios(list(measured.values()), peer, ours)


def within(seconds: float, case: str, ours: str) -> Callable[..., Sequence[float]]:
    """The allowed time of a case, divided by its time."""
    return lambda measured: [seconds / taken for taken in measured[case][ours]]


def worst_of(cases: Sequence[str], peer: str, ours: str) -> Callable[..., Sequence[float]]:
    """The case with the lowest median."""

    def ratio(measured: figures.Figures) -> Sequence[float]:
        each = [figures.ratios(measured[case], peer, ours) for case in cases]
        return min(each, key=statistics.median)

    return ratio


AIMS = (
    Aim(
        "allreduce-2",
        "any memory, 64 KiB to 64 MiB: Gloo / ours",
        5,
        mean_over(LARGE, "gloo", OURS),
    ),
    Aim("allreduce-2", "the same: MPICH / ours", 1.3, mean_over(LARGE, "mpich", OURS)),
    Aim("allreduce-2", "shared memory: Gloo / ours", 10, mean_over(LARGE, "gloo", SHARED)),
    Aim("allreduce-2", "shared memory: MPICH / ours", 2.5, mean_over(LARGE, "mpich", SHARED)),
    *(
        Aim(
            f"allreduce-{np}",
            f"{np} ranks, {memory} memory, from 1 MiB, worst: bare shared memory / ours",
            1 / 1.25,
            worst_of(FROM_1_MIB, limit, ours),
        )
        for np in (2, 4)
        for memory, limit, ours in (("any", "limit", OURS), ("shared", "limit-shared", SHARED))
    ),
    *(
        Aim(
            f"allreduce-{np}",
            f"{np} ranks, torch, {size}: MPICH / ours",
            least,
            worst_of((size,), "mpich", TORCH),
        )
        for np, size, least in (
            (2, "4 B", 0.6),
            (2, "4 KiB", 1),
            (4, "4 B", 0.8),
            (4, "4 KiB", 0.8),
        )
    ),
    *(
        Aim(
            f"allreduce-{np}",
            f"{np} ranks, shared memory, {size}: bare shared memory / ours",
            1 / 2,
            worst_of((size,), "limit-shared", SHARED),
        )
        for np, size in ((2, "64 KiB"), (4, "1 MiB"))
    ),
    *(
        Aim(
            "allreduce-160",
            f"160 of 4 KiB at once, {ours}: 1 ms / ours",
            1,
            within(1e-3, "4 KiB", ours),
        )
        for ours in (OURS, TORCH)
    ),
    Aim(
        "allreduce-hosts",
        "two hosts, 4 KiB to 16 MiB: Gloo / ours",
        6,
        mean_over(TO_16_MIB, "gloo", OURS),
    ),
    Aim(
        "allreduce-hosts",
        "two hosts, from 1 MiB, worst: bare TCP stream / ours",
        0.8,
        worst_of(("1 MiB", "16 MiB"), "tcp", OURS),
    ),
    *(
        Aim(
            "movement-2",
            f"64 KiB to 16 MiB, {memory} memory: {name} / ours",
            least,
            mean_over_all(peer, ours),
        )
        for memory, ours, peer, name, least in (
            ("any", OURS, "gloo", "Gloo", 10),
            ("any", OURS, "mpich", "MPICH", 0.9),
            ("shared", SHARED, "gloo", "Gloo", 15),
            ("shared", SHARED, "mpich", "MPICH", 1.2),
        )
    ),
    Aim("allreduce-4", "4 ranks, 64 KiB to 64 MiB: Gloo / ours", 4, mean_over(LARGE, "gloo", OURS)),
    Aim("allreduce-4", "the same: MPICH / ours", 1.2, mean_over(LARGE, "mpich", OURS)),
    Aim("messages", "4 KiB one way: 8 µs / ours", 1, within(8e-6, "4 KiB", OURS)),
    Aim("messages", "a view of 16 MiB: 10 µs / ours", 1, within(10e-6, "16 MiB", VIEW)),
    Aim("messages", "16 MiB: memcpy / ours", 1 / 1.2, worst_of(("16 MiB",), "memcpy", OURS)),
    Aim(
        "messages",
        "16 MiB, shared: memcpy / ours",
        1 / 1.1,
        worst_of(("16 MiB",), "memcpy", SHARED),
    ),
    Aim("messages", "4 KiB: Gloo / ours", 10, worst_of(("4 KiB",), "gloo", OURS)),
    Aim("messages", "16 MiB: Gloo / ours", 2, worst_of(("16 MiB",), "gloo", OURS)),
    Aim("messages", "64 KiB to 16 MiB, worst: MPICH / ours", 1, worst_of(LARGE[:3], "mpich", OURS)),
    Aim(
        "torch_distributed",
        "all_reduce, 4 KiB: Gloo / ours",
        3,
        worst_of(("all_reduce 4 KiB",), "gloo", OURS),
    ),
    *(
        Aim(
            "torch_distributed",
            f"{kind}, 64 KiB to {sizes[-1]}: Gloo / ours",
            least,
            mean_over([f"{kind} {size}" for size in sizes], "gloo", OURS),
        )
        for kind, least, sizes in (
            ("all_reduce", 5, LARGE),
            ("all_gather_into_tensor", 4, LARGE[:3]),
            ("reduce_scatter_tensor", 4, LARGE[:3]),
        )
    ),
    *(
        Aim(
            "torch_distributed",
            f"send and recv, {size}: Gloo / ours",
            least,
            worst_of((f"send and recv {size}",), "gloo", OURS),
        )
        for size, least in (("4 KiB", 5), ("16 MiB", 2))
    ),
    Aim(
        "torch_distributed",
        "160 asynchronous all_reduce: Gloo / ours",
        10,
        worst_of(("160 all_reduce 1 KiB",), "gloo", OURS),
    ),
    *(
        Aim(
            "torch_distributed_training",
            f"{case}: {peer} / ours",
            least,
            worst_of((case,), peer, OURS),
        )
        for case, peer, least in (
            ("ddp perceptron", "gloo", 1.2),
            ("ddp convolutions", "gloo", 1.08),
            ("ddp transformer", "gloo", 1.05),
            ("fsdp2 transformer", "gloo", 1.3),
            ("1f1b 150 ms", "alone", 1 / 1.02),
        )
    ),
    Aim("gradients", "gradients of a model, worst: DDP / ours", 1, worst_of(MODELS, "ddp", OURS)),
    *(
        Aim(
            "training",
            f"{task}: without communication / ours",
            0.95,
            worst_of((task,), "alone", OURS),
        )
        for task in TASKS
    ),
    *(Aim("training", f"{task}: DDP / ours", 1, worst_of((task,), "ddp", OURS)) for task in TASKS),
    Aim(
        "overlap",
        "200 Mbit/s, VGG: fifo / priority, of the best possible ratio",
        0.9,
        lambda measured: share_of_ideal(measured["vgg 200"])[1],
    ),
    *(
        Aim("overlap", f"200 Mbit/s, {what}: {peer} / {ours}", least, worst_of((case,), peer, ours))
        for what, case, peer, ours, least in (
            ("VGG", "vgg 200", "fifo", "priority", 1.2),
            ("VGG", "vgg 200", "ddp", "priority", 1.4),
            ("VGG", "vgg 200", "ddp", "priority-bf16", 1.7),
            ("transformer", "transformer 200", "ddp", "priority-bf16", 1.7),
        )
    ),
)


def verdicts(results: Results) -> Table:
    """The aims, and whether each is reached."""
    table = Table("benchmark", "ratio of times", "at least", "median (range)", "")
    for aim in AIMS:
        try:
            values = aim.ratio(results[aim.run])
        except KeyError:
            continue  # not measured: a smoke test has few cases
        reached = statistics.median(values) >= aim.least
        verdict = "[green]reached" if reached else "[red]not reached"
        table.add_row(aim.run, aim.text, f"{aim.least:.2f}", figures.spread(values), verdict)
    return table


def plot(name: str, measured: figures.Figures, output: Path) -> None:
    """Draw the medians and ranges of all implementations, case by case."""
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    cases = list(measured)
    names = list(measured[cases[0]])
    width = 0.8 / len(names)
    for i, implementation in enumerate(names):
        milliseconds = [[1e3 * s for s in measured[case][implementation]] for case in cases]
        middle = [statistics.median(each) for each in milliseconds]
        below = [m - min(each) for m, each in zip(middle, milliseconds, strict=True)]
        above = [max(each) - m for m, each in zip(middle, milliseconds, strict=True)]
        places = [j + (i - (len(names) - 1) / 2) * width for j in range(len(cases))]
        axes.bar(places, middle, width, yerr=[below, above], label=implementation)
    axes.set_xticks(range(len(cases)), cases)
    axes.set_yscale("log")
    axes.set_ylabel("milliseconds: median and range")
    axes.set_title(name)
    axes.legend(fontsize="small")
    for kind in ("png", "svg"):
        figure.savefig(output / f"{name}.{kind}")
    pyplot.close(figure)


def machine() -> str:
    """Describe the machine."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{len(models)} x {models[0] if models else 'unknown CPU'}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer-venv", type=Path, default=Path(".venv-peers"), metavar="DIR")
    parser.add_argument("--output", type=Path, default=Path("build/bench"), metavar="DIR")
    parser.add_argument("--only", help="comma-separated, of " + ", ".join(r.name for r in RUNS))
    parser.add_argument(
        "--smoke", action="store_true", help="smoke test: a short run of each benchmark"
    )
    arguments = parser.parse_args()
    chosen = [run for run in RUNS if not arguments.smoke or run.smoke]
    if arguments.only:
        wanted = arguments.only.split(",")
        if unknown := set(wanted) - {run.name for run in RUNS}:
            parser.error(f"unknown benchmarks {sorted(unknown)}")
        chosen = [run for run in RUNS if run.name in wanted]
    arguments.output.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    results: dict[str, Any] = {}
    failed = []
    for run in chosen:
        if reason := run.obstacle():
            print(f"\n{run.name} is left out: {reason}")
            continue
        path = arguments.output / f"{run.name}.json"
        try:
            run(arguments, path)
        except (
            subprocess.CalledProcessError
        ) as error:  # its output explains why; the others continue
            failed.append(f"{run.name} failed with status {error.returncode}")
            continue
        results[run.name] = json.loads(path.read_text()).get("seconds", {})
        if results[run.name]:
            plot(run.name, results[run.name], arguments.output)
    console = Console(width=120)
    console.print(f"\n{machine()}, {time.monotonic() - begin:.0f} s", verdicts(results))
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
