"""One rank of a soak: random collectives, submitted in another order on every rank, all checked.

    horoscalerun -np 4 python soak.py --seed 7 --iterations 1000

An iteration submits a handful of asynchronous operations, named and unnamed, and waits for them
in yet another order; some end with a barrier or a join. The seed decides everything. A rank that
makes no progress for a minute ends with the tracebacks of its threads.
"""

from __future__ import annotations

import argparse
import faulthandler

import numpy as np
from random_operations import Operation, draw, reduced

import horoscale.numpy as hvd

SECONDS_WITHOUT_PROGRESS = 60
STEADY_NAMES = 40  # names that come again and again, each with its operation


class Soak:
    """The operations of one seed, drawn alike on all ranks, and this rank's part in them."""

    def __init__(self, seed: int) -> None:
        self._rank, self._size = hvd.rank(), hvd.size()
        self._common = np.random.default_rng(seed)  # the same on all ranks
        self._own = np.random.default_rng([seed, self._rank])  # the order of this rank
        self._steady: dict[str, Operation] = {}

    def iterate(self, iteration: int) -> int:
        """Runs one iteration; returns the number of operations in it."""
        batch = self._draw_batch(iteration)
        handles = {k: batch[k][0].start(self._rank, batch[k][1]) for k in self._order(batch)}
        for k in self._own.permutation(len(batch)):
            operation, name = batch[k]
            try:
                operation.check(self._rank, hvd.synchronize(handles[k]))
            except Exception as error:
                where = f"iteration {iteration}, operation {k}, named {name}"
                raise RuntimeError(f"{where}: {operation.description}") from error
        chance = self._common.random()
        if chance < 0.05:
            hvd.barrier()
        elif chance < 0.1:
            self._join(iteration)
        return len(batch)

    def _draw_batch(self, iteration: int) -> list[tuple[Operation, str | None]]:
        batch: dict[str, tuple[Operation, str | None]] = {}
        for k in range(self._common.integers(1, 9)):
            chance = self._common.random()
            if chance < 0.4:
                name = f"steady.{self._common.integers(STEADY_NAMES)}"
                # Now and then a known name comes with another operation, which no cache may hide.
                if name not in self._steady or self._common.random() < 0.05:
                    self._steady[name] = draw(self._common, self._size)
                batch[name] = self._steady[name], name
            else:
                name = f"fresh.{iteration}.{k}"
                batch[name] = draw(self._common, self._size), name if chance < 0.8 else None
        return list(batch.values())

    def _order(self, batch: list[tuple[Operation, str | None]]) -> list[int]:
        """A random order of submission that keeps the unnamed ones, matched by it, in sequence."""
        order = [int(k) for k in self._own.permutation(len(batch))]
        unnamed = iter(sorted(k for k in order if batch[k][1] is None))
        return [next(unnamed) if batch[k][1] is None else k for k in order]

    def _join(self, iteration: int) -> None:
        """Some ranks run out of data, the others go on without them."""
        absent = set(self._common.permutation(self._size)[: self._common.integers(self._size)])
        inputs = self._common.standard_normal((self._size, 1000)).astype(np.float32)
        active = [r for r in range(self._size) if r not in absent]
        zeros = np.zeros_like(inputs[0])
        if self._rank in active:
            result = hvd.allreduce(inputs[self._rank], op=hvd.Average, name=f"left.{iteration}")
            # The absent ones add nothing, and count.
            contributions = [inputs[r] if r in active else zeros for r in range(self._size)]
            assert np.array_equal(result, reduced(contributions, hvd.Average))
        last = hvd.join()
        # What the others did needed the absent ones to have joined before.
        assert last in active, f"join() returned {last}; the ranks that went on were {active}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--iterations", type=int, required=True)
    arguments = parser.parse_args()
    hvd.init()
    soak = Soak(arguments.seed)
    operations = 0
    for iteration in range(arguments.iterations):
        faulthandler.dump_traceback_later(SECONDS_WITHOUT_PROGRESS, exit=True)
        operations += soak.iterate(iteration)
    faulthandler.cancel_dump_traceback_later()
    print(f"{arguments.iterations} iterations, {operations} operations")
    hvd.shutdown()


if __name__ == "__main__":
    main()
