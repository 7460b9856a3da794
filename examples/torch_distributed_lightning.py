"""Trains a classifier of handwritten digits with Lightning's Trainer over the horoscale backend.

Only the strategy's process_group_backend names horoscale. Requires lightning and scikit-learn.

    torchrun --nproc-per-node 2 examples/torch_distributed_lightning.py
    python examples/torch_distributed_lightning.py    # Lightning starts the other rank
"""

from __future__ import annotations

import argparse
from typing import Any

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import horoscale.torch.distributed  # noqa: F401  # for torch before 2.5


class Digits(lightning.LightningModule):
    """A perceptron for images of 8 x 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.layers(images), labels)
        self.log("loss", loss, sync_dist=True)
        return loss

    def test_step(self, batch: Any, index: int) -> None:
        images, labels = batch
        right = (self.layers(images).argmax(1) == labels).float().mean()
        self.log("accuracy", right, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="horoscale")
    parser.add_argument("--epochs", type=int, default=5)
    arguments = parser.parse_args()

    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    for_training = DataLoader(TensorDataset(images[360:], labels[360:]), 32, shuffle=True)
    for_test = DataLoader(TensorDataset(images[:360], labels[:360]), 60)

    lightning.seed_everything(0, verbose=False)
    model = Digits()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend=arguments.backend),
        max_epochs=arguments.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, for_training)
    (result,) = trainer.test(model, for_test, verbose=False)
    weights = sum(parameter.double().sum() for parameter in model.parameters())
    if trainer.is_global_zero:
        accuracy = result["accuracy"]
        print(f"{trainer.world_size} ranks, accuracy {accuracy:.4f}, weights {weights:.12f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
