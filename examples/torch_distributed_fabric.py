"""Trains a classifier of handwritten digits with Lightning Fabric over the horoscale backend.

Only the strategy's process_group_backend names horoscale. Requires lightning and scikit-learn.

    torchrun --nproc-per-node 2 examples/torch_distributed_fabric.py
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import horoscale.torch.distributed  # noqa: F401  # for torch before 2.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="horoscale")
    parser.add_argument("--epochs", type=int, default=5)
    arguments = parser.parse_args()

    strategy = DDPStrategy(process_group_backend=arguments.backend)
    fabric = Fabric(accelerator="cpu", devices=2, strategy=strategy)
    fabric.launch()
    fabric.seed_everything(0)

    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    batches = fabric.setup_dataloaders(
        DataLoader(TensorDataset(images[360:], labels[360:]), 32, shuffle=True)
    )
    layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model, optimizer = fabric.setup(
        layers, torch.optim.SGD(layers.parameters(), lr=0.1, momentum=0.9)
    )
    for _ in range(arguments.epochs):
        for some_images, some_labels in batches:
            optimizer.zero_grad()
            fabric.backward(nn.functional.cross_entropy(model(some_images), some_labels))
            optimizer.step()

    with torch.no_grad():
        own = slice(fabric.global_rank, 360, fabric.world_size)
        right = (model(images[own]).argmax(1) == labels[own]).sum()
    accuracy = float(fabric.all_reduce(right, reduce_op="sum")) / 360
    weights = sum(parameter.double().sum() for parameter in model.parameters())
    if fabric.is_global_zero:
        print(f"{fabric.world_size} ranks, accuracy {accuracy:.4f}, weights {weights:.12f}")
    # Destroying Gloo's group joins its thread, which may still need the GIL.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
