"""DataPlan: assigns each sample of an epoch to a rank exactly once, even if the ranks change."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from horoscale.common import job
from horoscale.elastic.load_balance import Balance


@dataclass(frozen=True)
class Share:
    """One rank's share of a step's samples."""

    indices: list[int]  # of samples; may be empty if fewer samples than ranks are left
    total: int  # number of samples of all ranks in this step
    # The weight of this rank's mean over `indices`. The average of the weighted means over the
    # ranks is the mean over the samples of all ranks. 0.0 if this rank has no samples.
    weight: float

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)


class DataPlan:
    """A position in an epoch's permutation of the samples. Each step takes the next samples.

        plan = hvd.elastic.DataPlan(len(samples), batch_size=32)
        state = hvd.elastic.ObjectState(plan=plan)

        for share in plan:  # the rest of the epoch
            loss = loss_sum(model, samples[share.indices]) * hvd.size() / share.total
            ...
            state.commit()
        plan.next_epoch()

    A step takes one global batch of positions and divides it by rank. A commit contains only the
    position. After a change of the ranks, training therefore continues at the position of the
    committed model, which has seen each sample of an epoch exactly once. The last step of an epoch
    may be short; it is divided in proportion to the batch sizes.
    """

    def __init__(
        self,
        length: int,
        batch_size: int | Sequence[int] | Balance,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        """Start with epoch 0.

        Args:
            length: the number of samples.
            batch_size: samples per rank and step; or a list with one number per rank, which a reset
                callback must replace when the number of ranks changes; or balance().
            shuffle: whether to permute the samples, differently in each epoch and equally on all
                ranks.
            seed: the seed of the permutations.

        Raises ValueError if a batch size is below 1 or the length is negative.
        """
        if length < 0:
            raise ValueError(f"length={length}: the number of samples must not be negative")
        self.length = length
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.position = 0  # number of positions of the permutation that were taken
        self._order: tuple[int, list[int]] | None = None  # an epoch and its permutation
        self.batch_size = batch_size

    @property
    def batch_size(self) -> int | Sequence[int] | Balance:
        """Samples per step of one rank, or of each rank. Can be changed between steps."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, value: int | Sequence[int] | Balance) -> None:
        if isinstance(value, Balance):
            self._batch_size: int | Sequence[int] | Balance = value
            return
        sizes = [value] if isinstance(value, int) else list(value)
        if not sizes or any(one < 1 for one in sizes):
            raise ValueError(f"batch_size={value!r}: each rank needs at least one sample per step")
        self._batch_size = value if isinstance(value, int) else tuple(value)

    def __iter__(self) -> Iterator[Share]:
        """Yield this rank's shares of the rest of the epoch, step by step."""
        while self.position < self.length:
            topology = job.current_runtime().topology
            share = self.take(topology.rank, topology.size)
            if isinstance(self._batch_size, Balance):
                with self._batch_size.measuring(len(share)):
                    yield share
            else:
                yield share

    def take(self, rank: int, size: int) -> Share:
        """Take the next step, and return the share of one of `size` ranks.

        Raises ValueError if the batch sizes are for a different number of ranks.
        """
        counts = self._counts(size)
        ends = [self.position, *(self.position + end for end in accumulate(counts))]
        order = self._permutation()
        indices = [order[i] for i in range(ends[rank], ends[rank + 1])]
        self.position = ends[-1]
        total = sum(counts)
        return Share(indices, total, len(indices) * size / total if total else 0.0)

    def next_epoch(self) -> None:
        """Start the next epoch, with a new permutation."""
        self.epoch += 1
        self.position = 0

    def before_commit(self) -> None:
        """Balance the load if requested. Called by states that hold the plan."""
        if isinstance(self._batch_size, Balance):
            self._batch_size.decide()

    def state_dict(self) -> dict[str, Any]:
        """Return the values for a commit."""
        state: dict[str, Any] = {"epoch": self.epoch, "position": self.position}
        if isinstance(self._batch_size, Balance):
            state["balance"] = self._batch_size.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the position at which state_dict() was called."""
        self.epoch = state_dict["epoch"]
        self.position = state_dict["position"]
        if isinstance(self._batch_size, Balance) and "balance" in state_dict:
            self._batch_size.load_state_dict(state_dict["balance"])

    def _counts(self, size: int) -> list[int]:
        """Return the number of samples of each rank in the next step."""
        match self._batch_size:
            case int(one):
                sizes = [one] * size
            case Balance() as balance:
                sizes = balance.sizes(size)
            case given:
                sizes = list(given)
        if len(sizes) != size:
            raise ValueError(
                f"the data plan has batch sizes for {len(sizes)} ranks, but there are {size}: set "
                "batch_size in a reset callback"
            )
        left = max(0, self.length - self.position)
        return sizes if left >= sum(sizes) else in_proportion(left, sizes)

    def _permutation(self) -> Sequence[int]:
        if not self.shuffle:
            return range(self.length)
        if self._order is None or self._order[0] != self.epoch:
            order = list(range(self.length))
            random.Random(self.seed + self.epoch).shuffle(order)
            self._order = self.epoch, order
        return self._order[1]


def in_proportion(total: int, weights: Sequence[float]) -> list[int]:
    """Split `total` in proportion to weights, by largest remainder. Ties go to lower indices."""
    whole = sum(weights)
    exact = [total * weight / whole for weight in weights]
    counts = [int(one) for one in exact]
    by_remainder = sorted(range(len(weights)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts
