"""One rank of one way of training over a slow network, for benchmarks/local_sgd.py.

The benchmark starts it and sends it measurement orders.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from orders import serve, times
from overlap_rank import TASKS
from training_rank import Make, alone, horoscale, plain_step

WARM_UP = 6  # steps, until the size of buckets fits the network


def implementation(name: str) -> Make:
    """The way of training with this name; "local-8" synchronizes every 8 steps."""
    if name.startswith("local-"):
        return horoscale(sync_every=int(name.removeprefix("local-")))
    ways: dict[str, Callable[[], Make]] = {
        "alone": alone,
        "gradients": horoscale,
        "gradients-int8": int8,
    }
    return ways[name]()


def int8() -> Make:
    """Overlap across steps, with the default choice of parameters to compress."""
    import horoscale.torch as hvd

    return horoscale(overlap_step=True, compression=hvd.Compression.int8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("implementation")
    parser.add_argument("socket", help="where the benchmark listens")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    make = implementation(arguments.implementation)
    steps: dict[str, Callable[[], object]] = {}

    def carry_out(task: str, count: int) -> list[float]:
        warm_up = 0
        if task not in steps:
            steps.clear()  # one model at a time
            model, optimizer = make(TASKS[task])
            steps[task] = plain_step(model, optimizer, TASKS[task])
            warm_up = -(-WARM_UP // count)  # whole rounds
        step = steps[task]

        def all_steps() -> None:
            for _ in range(count):
                step()

        return times(all_steps, 1, warm_up)

    serve(arguments.socket, carry_out)


if __name__ == "__main__":
    main()
