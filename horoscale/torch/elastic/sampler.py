"""ElasticSampler: a sampler that deals out what is left of an epoch when the ranks change."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sized
from typing import Any

import torch

from horoscale.common import basics, job


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Deals the samples of a data set that are left in this epoch to the ranks.

        sampler = hvd.elastic.ElasticSampler(dataset)
        state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, batch=0)

        for i, samples in enumerate(DataLoader(dataset, batch_size=32, sampler=sampler)):
            ...
            sampler.record_batch(i, 32)
            state.commit()
        sampler.set_epoch(state.epoch + 1)  # at the END of an epoch

    What was recorded by the last commit is not dealt out again, the rest is. All ranks need batches
    of one size; for others, and for last batches without repeated samples, see DataPlan.

    Attributes: epoch; processed_num, how many samples of it were recorded; num_replicas and rank of
    the job; remaining_indices, what is left on all ranks; num_samples, of this rank; total_size, of
    all ranks, where up to num_replicas - 1 samples count twice, so that all have equally many.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        """Begin with epoch 0; `seed` is that of its order, the same on all ranks."""
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.num_replicas = 1
        self.rank = 0
        self.remaining_indices: list[int] = []
        self.num_samples = 0
        self.total_size = 0
        self._start = 0  # processed_num when the rest was dealt out
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, in another order. Call it at the end of the one before."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Take note that all ranks have processed a batch.

        Args:
            batch_idx: which one, from 0, since iteration began.
            batch_size: how many samples each rank has in a full batch, or had in this one.
        """
        done = self.processed_num + batch_size * self.num_replicas
        if batch_idx == 0:
            done = self._start + batch_size * self.num_replicas
        self.processed_num = min(done, len(self.dataset))

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and how far it is."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go to where state_dict() was called, and deal the rest out to the present ranks."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Deal what is left of the epoch out to the present ranks."""
        if job.is_initialized():
            self.num_replicas, self.rank = basics.size(), basics.rank()
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        self._start = self.processed_num
        self.remaining_indices = order[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        left = self.remaining_indices
        for i in range(self.rank, self.total_size, self.num_replicas):
            yield left[i % len(left)]

    def __len__(self) -> int:
        return self.num_samples
