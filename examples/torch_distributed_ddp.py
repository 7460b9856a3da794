"""Trains a classifier of handwritten digits with PyTorch's own DistributedDataParallel.

Only the name of the backend is specific to horoscale:

    torchrun --nproc-per-node 2 examples/torch_distributed_ddp.py
    horoscalerun -np 2 --torch-env python examples/torch_distributed_ddp.py
    torchrun --nproc-per-node 2 examples/torch_distributed_ddp.py --backend gloo
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import horoscale.torch.distributed  # noqa: F401  # for torch before 2.5

ROWS_FOR_TEST = 360


def datasets() -> tuple[TensorDataset, TensorDataset]:
    """Return the training and test images, 8 x 8 pixels from 0 to 1, and their digits."""
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    return (
        TensorDataset(images[ROWS_FOR_TEST:], labels[ROWS_FOR_TEST:]),
        TensorDataset(images[:ROWS_FOR_TEST], labels[:ROWS_FOR_TEST]),
    )


def train(model: nn.Module, dataset: TensorDataset, epochs: int) -> None:
    sampler: DistributedSampler[int] = DistributedSampler(dataset)
    batches = DataLoader(dataset, batch_size=32, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * dist.get_world_size(), momentum=0.9)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for images, labels in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module, dataset: TensorDataset) -> float:
    """Test on this rank's part."""
    images, labels = dataset.tensors
    own = slice(dist.get_rank(), None, dist.get_world_size())
    right = (model(images[own]).argmax(1) == labels[own]).sum()
    dist.all_reduce(right)
    return float(right) / len(labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="horoscale")
    parser.add_argument("--epochs", type=int, default=5)
    arguments = parser.parse_args()

    dist.init_process_group(arguments.backend)
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    )
    for_training, for_test = datasets()
    train(model, for_training, arguments.epochs)
    result = accuracy(model, for_test)
    checksum = sum(parameter.double().sum() for parameter in model.parameters())
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks, accuracy {result:.4f}, weights {checksum:.12f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
