"""Measures dividing models among ranks, compared with PyTorch's libraries over Gloo.

    python benchmarks/parallel.py --sections pipeline

Each section starts its own ranks and prints its own table. In each round all implementations are
measured alternately. A figure is that of the slowest rank: the median over the steps, then the
median over the rounds, with the range.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path

import figures
import parallel_layers
import parallel_network
import parallel_pipeline
import parallel_ring

# Each section prints its table; arguments: the number of rounds, and whether it is a smoke test.
SECTIONS: dict[str, Callable[[int, bool], figures.Figures]] = {
    "layers": parallel_layers.run,
    "network": parallel_network.run,
    "pipeline": parallel_pipeline.run,
    "ring": parallel_ring.run,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sections", default=",".join(SECTIONS), help="comma-separated")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures of every round"
    )
    parser.add_argument("--smoke", action="store_true", help="smoke test: one short round")
    arguments = parser.parse_args()
    chosen = arguments.sections.split(",")
    if unknown := set(chosen) - set(SECTIONS):
        parser.error(f"unknown sections {sorted(unknown)}; known are {', '.join(SECTIONS)}")
    rounds = 1 if arguments.smoke else arguments.rounds
    measured = {name: SECTIONS[name](rounds, arguments.smoke) for name in chosen}
    if arguments.json:
        facts = {"cores": len(os.sched_getaffinity(0)), "sections": measured}
        arguments.json.write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
