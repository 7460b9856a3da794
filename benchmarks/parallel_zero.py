"""Measures training state divided among ranks: par.shard() compared with PyTorch over Gloo.

    python benchmarks/parallel_zero.py [--rounds 7] [--size 100m] [--only step|memory]

Trains a transformer with AdamW in float32, on one host. "step" compares the time of a training
step, interleaved: stage 3 with FSDP2, and stage 1 with ZeroRedundancyOptimizer behind
DistributedDataParallel. "memory" is the peak growth of a rank's proportional set size
(/proc/self/smaps_rollup) since before the model was created. It is read when the model is created,
and in the second step after each block's forward pass, the backward pass and the optimizer's step.
For "memory" every way runs in its own processes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
from collections.abc import Iterable
from pathlib import Path

import figures
from folders import temporary_folder
from ranks import Job

RANK_PROGRAM = Path(__file__).with_name("parallel_zero_rank.py")
SIZES = {  # width, layers, words, samples of a rank, positions
    "smoke": (64, 2, 128, 1, 16),
    "small": (256, 6, 4096, 2, 64),
    "100m": (768, 12, 16384, 1, 64),
}
PAIRS = {"stage 3": ("fsdp2", "stage 3"), "stage 1": ("zero redundancy", "stage 1")}
WAYS = {  # the implementation
    "ddp": "gloo",
    "zero redundancy": "gloo",
    "fsdp2": "gloo",
    "stage 1": "horoscale",
    "stage 2": "horoscale",
    "stage 3": "horoscale",
    "stage 3 on disk": "horoscale",
}
MIB = 1 << 20


class Way:
    """One way to train, in the processes of a Job."""

    def __init__(self, name: str, job: Job) -> None:
        self.name = name
        self._job = job

    def measure(self, *order: object) -> float:
        return self._job.measure(self.name, *order)


LIMIT_SECONDS = 120.0  # timeout of an order


def start(
    stack: contextlib.ExitStack,
    name: str,
    ranks: int,
    size: str,
    folder: Path,
    limit: float = LIMIT_SECONDS,
) -> Job:
    """Start the ranks of an implementation, which train any of its ways."""
    own = Path(tempfile.mkdtemp(dir=folder))
    variables = {"ZERO_SIZE": json.dumps(SIZES[size]), "MALLOC_ARENA_MAX": "1"}
    job = Job(RANK_PROGRAM, name, ranks, own, own, variables, measure_seconds=limit)
    stack.callback(job.end)
    return job


def compare_steps(rounds: int, ranks: int, size: str, steps: int, limit: float) -> figures.Figures:
    """Measure the steps of each pair alternately, and print ratios."""
    measured: figures.Figures = {}
    for case, (theirs, ours) in PAIRS.items():
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(temporary_folder())
            jobs = [
                Way(name, start(stack, WAYS[name], ranks, size, folder, limit))
                for name in (theirs, ours)
            ]
            measured |= figures.interleave(
                jobs, {f"{case}, {ranks} ranks": ("step", steps)}, rounds
            )
    for case, of_case in measured.items():
        print("\n".join(figures.medians({case: of_case}, "ms", 1e3)))
        print("\n".join(figures.comparison({case: of_case}, list(PAIRS.values()))), flush=True)
    return measured


def compare_memory(
    rounds: int, ranks: int, size: str, ways: Iterable[str], limit: float
) -> figures.Figures:
    """Measure the memory of each way in new processes, and compare it with DDP's."""
    measured: figures.Figures = {f"memory, {ranks} ranks": {}}
    found = measured[f"memory, {ranks} ranks"]
    for _ in range(rounds):
        for way in ways:
            with contextlib.ExitStack() as stack:
                folder = stack.enter_context(temporary_folder())
                job = start(stack, WAYS[way], ranks, size, folder, limit)
                found.setdefault(way, []).append(job.measure(way, "memory", 1))
    print(f"{ranks} ranks: PSS of a rank beyond what it has before the model, MiB")
    for way, values in found.items():
        ratios = [one / ddp for one, ddp in zip(values, found["ddp"], strict=True)]
        print(
            f"{way:>16} {statistics.median(values) / MIB:8.1f}   of DDP: {figures.spread(ratios)}"
        )
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", default="2", help="how many, comma-separated")
    parser.add_argument("--size", choices=SIZES, default="small", help="of the model")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=["step", "memory"])
    parser.add_argument(
        "--ways", default=",".join(WAYS), help="ways whose memory is compared with ddp's"
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=LIMIT_SECONDS,
        help="timeout in seconds for creating a model and two steps (100m needs more)",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures of every round"
    )
    parser.add_argument("--smoke", action="store_true", help="smoke test: a small model on 2 ranks")
    options = parser.parse_args()
    steps, ways = 3, ["ddp", *(one for one in options.ways.split(",") if one != "ddp")]
    if not WAYS.keys() >= set(ways):
        parser.error(f"--ways: there are {', '.join(WAYS)}")
    if options.smoke:
        options.ranks, options.size, options.rounds, steps = "2", "smoke", 1, 1
        ways = ["ddp", "stage 3"]
    measured: figures.Figures = {}
    for ranks in map(int, options.ranks.split(",")):
        if options.only != "memory":
            measured |= compare_steps(options.rounds, ranks, options.size, steps, options.limit)
        if options.only != "step":
            rounds = min(options.rounds, 3)
            measured |= compare_memory(rounds, ranks, options.size, ways, options.limit)
    figures.write(options.json, measured, size=options.size)


if __name__ == "__main__":
    main()
