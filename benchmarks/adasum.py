"""Compares the time of an allreduce by Adasum with the same one by Sum: median times, interleaved.

horoscalerun -np 2 python benchmarks/adasum.py
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

import horoscale.numpy as hvd

DTYPES = ("float16", "float32", "float64")
SIZES = (64 << 10, 1 << 20, 16 << 20)
WARM_UP = 3


def seconds(array: np.ndarray, op: int, name: str, calls: int) -> float:
    """Return the median time of in-place calls on this rank."""
    times = []
    for call in range(WARM_UP + calls):
        hvd.barrier()
        start = time.perf_counter()
        hvd.allreduce_(array, op=op, name=name)
        if call >= WARM_UP:
            times.append(time.perf_counter() - start)
        array.fill(1)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", help="bytes, comma-separated (default: 64 KiB to 16 MiB)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=15, help="in a round")
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.sizes.split(",")] if arguments.sizes else SIZES
    hvd.init()
    if hvd.rank() == 0:
        print(f"{hvd.size()} ranks: microseconds by Sum, by Adasum, and how many times as long")
    for dtype in DTYPES:
        for size in sizes:
            array = np.ones(size // np.dtype(dtype).itemsize, dtype)
            name = f"{dtype}.{size}"
            rounds = [
                (
                    seconds(array, hvd.Sum, f"sum.{name}", arguments.calls),
                    seconds(array, hvd.Adasum, f"adasum.{name}", arguments.calls),
                )
                for _ in range(arguments.rounds)
            ]
            of_sum = statistics.median(one for one, _ in rounds)
            of_adasum = statistics.median(one for _, one in rounds)
            if hvd.rank() == 0:
                print(
                    f"{dtype:8} {size:>10} bytes {of_sum * 1e6:10.0f} {of_adasum * 1e6:10.0f}"
                    f" {of_adasum / of_sum:6.2f}"
                )
    hvd.shutdown()


if __name__ == "__main__":
    main()
