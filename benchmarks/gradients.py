"""Measures averaging the gradients of real models, compared with DistributedDataParallel.

    python benchmarks/gradients.py --np 2

Nothing is computed: a backward pass gives each parameter a gradient of the right size, last layer
first, at almost no cost. What remains is the handling of gradients: buckets, communication, and
writing the averages back. The models are ResNet-50, VGG-16 and BERT-base, as in their papers and
reference implementations.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path

import figures
from folders import temporary_folder
from ranks import Job

MODELS = ("resnet50", "vgg16", "bert-base")
NAMES = ("ddp", "horoscale")
RANK_PROGRAM = Path(__file__).with_name("gradients_rank.py")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--np", type=int, default=2, help="ranks (default: 2)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="steps in a round (default: 5)")
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures of every round"
    )
    parser.add_argument("--smoke", action="store_true", help="smoke test: one model, one round")
    arguments = parser.parse_args()
    models, rounds = arguments.models.split(","), arguments.rounds
    if unknown := set(models) - set(MODELS):
        parser.error(f"unknown models {sorted(unknown)}; known are {', '.join(MODELS)}")
    if arguments.smoke:
        models, rounds, arguments.steps = ["resnet50"], 1, 1
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        jobs = []
        for name in NAMES:
            jobs.append(Job(RANK_PROGRAM, name, arguments.np, folder, folder))
            stack.callback(jobs[-1].end)
        cases = {model: (model, arguments.steps) for model in models}
        measured = figures.interleave(jobs, cases, rounds)
    print(f"the gradients of a step, {arguments.np} ranks, {os.cpu_count()} cores, {rounds} rounds")
    print("\n".join(figures.medians(measured, "ms", 1e3)))
    print("\n".join(figures.comparison(measured, [("ddp", "horoscale")])))
    figures.write(arguments.json, measured, np=arguments.np)


if __name__ == "__main__":
    main()
