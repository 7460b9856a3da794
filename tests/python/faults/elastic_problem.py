"""The training of `make faults`'s elastic jobs and of their fault-free replays.

Results do not depend on timing, BLAS or memory alignment, so that bits can be compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from horoscale.elastic import DataPlan

SAMPLES = 60
SIZES = (1000, 20_000)  # elements of the tensors: one takes one hop, one is planned
BATCH = 3

Array = NDArray[np.float32]


class Problem:
    """Linear models fitted to random samples by gradient descent with momentum."""

    def __init__(self, seed: int) -> None:
        """Make samples and weights, the same on all ranks."""
        random = np.random.default_rng(seed)
        self._inputs = [
            random.standard_normal((SAMPLES, size)).astype(np.float32) / np.float32(size**0.5)
            for size in SIZES
        ]
        self._targets = random.standard_normal(SAMPLES).astype(np.float32)
        self.plan = DataPlan(SAMPLES, BATCH, seed=seed)

    def weights(self) -> list[Array]:
        """Return the initial weights, followed by the momenta."""
        return [np.zeros(size, np.float32) for size in (*SIZES, *SIZES)]

    def step(
        self, values: list[Array], rank: int, size: int, average: Callable[[Array], Array]
    ) -> tuple[list[Array], list[int]]:
        """Take one step; return the new weights and momenta, and the samples of this rank."""
        if not self.plan.position < self.plan.length:
            self.plan.next_epoch()
        share = self.plan.take(rank, size)
        half = len(SIZES)
        new = list(values)
        for i, inputs in enumerate(self._inputs):
            gradient = np.zeros(SIZES[i], np.float32)
            for sample in share:
                error = (inputs[sample] * values[i]).sum(dtype=np.float64) - self._targets[sample]
                gradient += np.float32(error) * inputs[sample]
            gradient *= np.float32(size / share.total)
            new[half + i] = np.float32(0.9) * values[half + i] + average(gradient)
            new[i] = values[i] - np.float32(0.05) * new[half + i]
        return new, list(share)

    def counts(self) -> NDArray[np.int64]:
        """Return how often each sample must be in the model at this position of the plan."""
        counts = np.full(SAMPLES, self.plan.epoch, np.int64)
        whole = DataPlan(SAMPLES, self.plan.position or 1, seed=self.plan.seed)
        whole.epoch = self.plan.epoch
        counts[whole.take(0, 1).indices if self.plan.position else []] += 1
        return counts


def bits_of(values: list[Array]) -> str:
    """Return a hash of all bits."""
    return hashlib.sha256(b"".join(one.tobytes() for one in values)).hexdigest()
