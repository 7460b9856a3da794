"""Trains a classifier of handwritten digits with Accelerate over the horoscale backend.

Accelerate supports only one backend for CPUs, Gloo, but uses an existing process group: only the
call of init_process_group() names horoscale. Requires accelerate and scikit-learn.

    torchrun --nproc-per-node 2 examples/torch_distributed_accelerate.py
    accelerate launch --cpu --num_processes 2 examples/torch_distributed_accelerate.py
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import horoscale.torch.distributed  # noqa: F401  # for torch before 2.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="horoscale")
    parser.add_argument("--epochs", type=int, default=5)
    arguments = parser.parse_args()

    dist.init_process_group(arguments.backend)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    set_seed(0)

    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model, optimizer, for_training, for_test = accelerator.prepare(
        layers,
        torch.optim.SGD(layers.parameters(), lr=0.1, momentum=0.9),
        DataLoader(TensorDataset(images[360:], labels[360:]), 16, shuffle=True),
        DataLoader(TensorDataset(images[:360], labels[:360]), 50),
    )
    for _ in range(arguments.epochs):
        for some_images, some_labels in for_training:
            with accelerator.accumulate(model):
                optimizer.zero_grad()
                accelerator.backward(nn.functional.cross_entropy(model(some_images), some_labels))
                optimizer.step()

    right = 0
    for some_images, some_labels in for_test:
        with torch.no_grad():
            answers = model(some_images).argmax(1)
        # Without the padding that makes the ranks' last batches equally large.
        answers, some_labels = accelerator.gather_for_metrics((answers, some_labels))
        right += int((answers == some_labels).sum())
    weights = sum(parameter.double().sum() for parameter in model.parameters())
    ranks = accelerator.num_processes
    accelerator.print(f"{ranks} ranks, accuracy {right / 360:.4f}, weights {weights:.12f}")
    accelerator.end_training()  # destroys the process group as well


if __name__ == "__main__":
    main()
