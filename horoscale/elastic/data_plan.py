"""DataPlan: deals each position of an epoch's permutation out once, whatever the ranks do."""

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
    """What one rank has of one step's samples."""

    indices: list[int]  # of samples; empty on some ranks where fewer samples than ranks are left
    total: int  # how many samples all ranks have in this step
    # Of this rank's mean over `indices`: the average of weighted means is the mean over the samples
    # of all ranks. 0.0 where there are none, which have no mean.
    weight: float

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)


class DataPlan:
    """A position in an epoch's permutation of the samples, from which each step takes some.

        plan = hvd.elastic.DataPlan(len(samples), batch_size=32)
        state = hvd.elastic.ObjectState(plan=plan)

        for share in plan:  # what is left of the epoch
            loss = loss_sum(model, samples[share.indices]) * hvd.size() / share.total
            ...
            state.commit()
        plan.next_epoch()

    A step takes as many positions as all ranks together have in a batch and deals them out by rank.
    The position is all that is committed, so that after a change of the ranks the others go on
    where the committed model was: each position of an epoch is in it exactly once. The last step of
    an epoch is short, and dealt out in proportion.
    """

    def __init__(
        self,
        length: int,
        batch_size: int | Sequence[int] | Balance,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        """Begin with epoch 0.

        Args:
            length: how many samples there are.
            batch_size: samples of one rank in a step; or one number for each rank, which has to be
                set anew when their number changes (in a reset callback); or balance().
            shuffle: permute the samples, in each epoch in another way; the same on all ranks.
            seed: of the permutations.

        Raises ValueError where a size is below 1, or the length negative.
        """
        if length < 0:
            raise ValueError(f"a data plan can't have {length} samples")
        self.length = length
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.position = 0  # how many positions of the permutation are taken
        self._order: tuple[int, list[int]] | None = None  # an epoch and its permutation
        self.batch_size = batch_size

    @property
    def batch_size(self) -> int | Sequence[int] | Balance:
        """Samples of one rank in a step, or of each rank. May be changed between steps."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, value: int | Sequence[int] | Balance) -> None:
        if isinstance(value, Balance):
            self._batch_size: int | Sequence[int] | Balance = value
            return
        sizes = [value] if isinstance(value, int) else list(value)
        if not sizes or any(one < 1 for one in sizes):
            raise ValueError(f"batch_size={value!r}: each rank takes at least one sample in a step")
        self._batch_size = value if isinstance(value, int) else tuple(value)

    def __iter__(self) -> Iterator[Share]:
        """Deal out what is left of the epoch to this rank of the job, step by step."""
        while self.position < self.length:
            topology = job.current_runtime().topology
            share = self.take(topology.rank, topology.size)
            if isinstance(self._batch_size, Balance):
                with self._batch_size.measuring(len(share)):
                    yield share
            else:
                yield share

    def take(self, rank: int, size: int) -> Share:
        """Return the share of one of `size` ranks in the next step, which is taken from then on.

        Raises ValueError where there are batch sizes of another number of ranks.
        """
        counts = self._counts(size)
        ends = [self.position, *(self.position + end for end in accumulate(counts))]
        order = self._permutation()
        indices = [order[i] for i in range(ends[rank], ends[rank + 1])]
        self.position = ends[-1]
        total = sum(counts)
        return Share(indices, total, len(indices) * size / total if total else 0.0)

    def next_epoch(self) -> None:
        """Begin the next epoch, with another permutation."""
        self.epoch += 1
        self.position = 0

    def before_commit(self) -> None:
        """Balance the load, where that is asked for: called by states that hold the plan."""
        if isinstance(self._batch_size, Balance):
            self._batch_size.decide()

    def state_dict(self) -> dict[str, Any]:
        """Return what a commit holds."""
        state: dict[str, Any] = {"epoch": self.epoch, "position": self.position}
        if isinstance(self._batch_size, Balance):
            state["balance"] = self._batch_size.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go to where state_dict() was called."""
        self.epoch = state_dict["epoch"]
        self.position = state_dict["position"]
        if isinstance(self._batch_size, Balance) and "balance" in state_dict:
            self._batch_size.load_state_dict(state_dict["balance"])

    def _counts(self, size: int) -> list[int]:
        """Return how many samples each rank takes in the next step."""
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
    """Split a number in proportion to weights, by largest remainder; ties go to lower places."""
    whole = sum(weights)
    exact = [total * weight / whole for weight in weights]
    counts = [int(one) for one in exact]
    by_remainder = sorted(range(len(weights)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts
