"""Measures the gradients of a step with Keras' JAX backend: called by XLA, or through Python.

    KERAS_BACKEND=jax horoscalerun -np 2 python benchmarks/keras_jax.py

A step is a compiled function that only reduces gradients. In each round both ways are measured
alternately. A figure is the slowest rank's time: the median over the steps, then the median over
the rounds. A ratio compares times of one round, with its range over the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import horoscale.keras as hvd
from horoscale.keras import jax_step, xla
from horoscale.keras.eager_step import Group

# Numbers of float32 in each gradient.
TASKS = {
    "160 small": [1024] * 160,
    "transformer": [128, 128, 128 * 512, 512] * 12 + [2000 * 128],
    "perceptron": [1024 * 2048, 2048, 2048 * 2048, 2048, 2048 * 256, 256],
}
WAYS = {"python": jax_step.through_python, "xla": xla.allreduce_groups}
WARM_UP = 3


def make_step(way: Callable[..., Any], sizes: list[int]) -> Callable[[], object]:
    gradients = [jnp.full(size, hvd.rank(), jnp.float32) for size in sizes]

    @jax.jit
    def step(arrays: list[Any]) -> Any:
        return way(
            [Group([array * 0.5 for array in arrays])],
            op=hvd.Average,
            prescale_factor=1.0,
            postscale_factor=1.0,
            process_set=hvd.global_process_set,
        )

    return lambda: jax.block_until_ready(step(gradients))


def seconds(step: Callable[[], object], steps: int) -> float:
    times = []
    for index in range(WARM_UP + steps):
        hvd.barrier()
        start = time.perf_counter()
        step()
        if index >= WARM_UP:
            times.append(time.perf_counter() - start)
    return float(statistics.median(hvd.allreduce(np.array(times), op=hvd.Max)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20, help="steps in a round (default: 20)")
    arguments = parser.parse_args()
    hvd.init()
    xla.load()
    for task, sizes in TASKS.items():
        steps = {name: make_step(way, sizes) for name, way in WAYS.items()}
        rounds: dict[str, list[float]] = {name: [] for name in WAYS}
        for _ in range(arguments.rounds):
            for name, step in steps.items():
                rounds[name].append(seconds(step, arguments.steps))
        ratios = [a / b for a, b in zip(rounds["python"], rounds["xla"], strict=True)]
        figures = "  ".join(
            f"{name} {statistics.median(rounds[name]) * 1e3:.2f} ms" for name in WAYS
        )
        if hvd.rank() == 0:
            print(
                f"{task:12} {figures}  python/xla {statistics.median(ratios):.2f} "
                f"({min(ratios):.2f} to {max(ratios):.2f})"
            )


if __name__ == "__main__":
    main()
