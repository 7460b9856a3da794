"""Measures an allreduce of CUDA tensors, compared with PyTorch's NCCL backend.

    python benchmarks/nccl.py --np 2

The ranks of both implementations are started together and wait while the others measure, so every
round compares them on the same GPUs in the same state. A figure is the time of the slowest rank,
including the device's work: the median over the calls of a round, then the median over the rounds.
A ratio is PyTorch's time divided by ours (above 1: ours is faster), with its range over the rounds.
Every result is checked. Sizes are those of one tensor. The last case is many small tensors, all
started at once.

Each rank has its own GPU if there are enough. Otherwise ranks share GPUs, which NCCL supports since
version 2.30.3. Without a GPU nothing is measured.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path

import figures
from allreduce import Timed, size_text
from folders import temporary_folder
from ranks import Job

RANK_PROGRAM = Path(__file__).with_name("nccl_rank.py")
SIZES = tuple(64 << (10 + 2 * step) for step in range(7))  # 64 KiB to 256 MiB
SMALL_BYTES = 16 << 10
SMALL_TENSORS = 160
BANDWIDTH_AIM = 0.97  # PyTorch's


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--np", type=int, default=2, help="ranks (default: 2)")
    parser.add_argument("--sizes", help="bytes, comma-separated (default: 64 KiB to 256 MiB)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures of every round"
    )
    parser.add_argument("--smoke", action="store_true", help="smoke test: two sizes, one round")
    arguments = parser.parse_args()
    if arguments.np < 2:
        parser.error("--np: with one rank nothing is reduced")
    sizes = arguments.sizes
    arguments.sizes = [int(size) for size in sizes.split(",")] if sizes else list(SIZES)
    if any(size < 4 or size % 4 for size in arguments.sizes):
        parser.error("--sizes: the elements are float32, a size is a multiple of 4")
    if arguments.smoke:
        arguments.sizes, arguments.rounds = [64 << 10, 1 << 20], 1
    if problem := why_not(arguments.np):
        parser.error(problem)
    return arguments


def why_not(num_ranks: int) -> str | None:
    """Return why nothing can be measured here, or nothing."""
    try:
        import torch
    except ModuleNotFoundError:
        return "PyTorch is not installed"
    if not torch.cuda.is_available():
        return f"no GPU: PyTorch {torch.__version__} finds no CUDA device"
    version: tuple[int, ...] = torch.cuda.nccl.version()
    if torch.cuda.device_count() < num_ranks and version < (2, 30, 3):
        return (
            f"{num_ranks} ranks and {torch.cuda.device_count()} GPU: ranks may share one from NCCL "
            f"2.30.3 on, and PyTorch has {'.'.join(map(str, version))}"
        )
    return None


def verdict(measured: figures.Figures) -> Iterator[str]:
    """Lines: whether each aim is reached."""
    *sizes, small = measured
    for case in sizes:
        ratio = figures.spread(figures.ratios(measured[case], "nccl", "horoscale"))
        yield f"{case}: {ratio} of PyTorch's bandwidth (aim: {BANDWIDTH_AIM})"
    ratio = figures.spread(figures.ratios(measured[small], "nccl", "horoscale"))
    yield f"{small}: PyTorch takes {ratio} of our time (aim: more than 1)"


def main() -> None:
    arguments = parse_arguments()
    cases = {size_text(size): (size // 4, 1) for size in arguments.sizes}
    small = f"{SMALL_TENSORS} x {size_text(SMALL_BYTES)}"
    cases[small] = (SMALL_BYTES // 4, SMALL_TENSORS)
    # This has no effect if a rank is the only user of its GPU.
    variables = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        jobs = []
        for name in ("horoscale", "nccl"):
            jobs.append(Job(RANK_PROGRAM, name, arguments.np, folder, folder, variables))
            stack.callback(jobs[-1].end)
        measured = figures.interleave([Timed(job) for job in jobs], cases, arguments.rounds)
    print(f"allreduce of float32 on GPUs, {arguments.np} ranks, {arguments.rounds} rounds")
    print("\n".join(figures.medians(measured, "µs", 1e6)))
    print("\n".join(verdict(measured)))
    figures.write(arguments.json, measured, np=arguments.np)


if __name__ == "__main__":
    main()
