"""ElasticSampler: a sampler that redistributes the rest of an epoch when the ranks change."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sized
from typing import Any

import torch

from horoscale.common import basics, job


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Distributes the remaining samples of the current epoch among the ranks.

        sampler = hvd.elastic.ElasticSampler(dataset)
        state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, batch=0)

        for i, samples in enumerate(DataLoader(dataset, batch_size=32, sampler=sampler)):
            ...
            sampler.record_batch(i, 32)
            state.commit()
        sampler.set_epoch(state.epoch + 1)  # at the END of an epoch

    After a change of the ranks, samples recorded by the last commit are not used again; the rest is
    redistributed. All ranks must use batches of the same size. For other sizes, and for last
    batches without repeated samples, see DataPlan.

    Attributes: `epoch`; `processed_num`, the number of recorded samples of the epoch;
    `num_replicas` and `rank` of the job; `remaining_indices`, the remaining samples of all ranks;
    `num_samples` of this rank; `total_size`, that of all ranks. The latter counts up to
    num_replicas - 1 samples twice, so that all ranks have the same number.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        """Start with epoch 0. `seed` determines the order and must be the same on all ranks."""
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
        self._start = 0  # processed_num at the last redistribution
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch, in a new order. Call it at the end of the preceding epoch."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Record that all ranks have processed a batch.

        Args:
            batch_idx: the index of the batch, from 0, since the iteration began.
            batch_size: the number of samples of each rank in a full batch, or in this one.
        """
        done = self.processed_num + batch_size * self.num_replicas
        if batch_idx == 0:
            done = self._start + batch_size * self.num_replicas
        self.processed_num = min(done, len(self.dataset))

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and the progress in it."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state_dict(), and redistribute the rest among the current ranks."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Redistribute the rest of the epoch among the current ranks."""
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
