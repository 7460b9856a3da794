"""Trains a classifier of handwritten digits with Lightning's Trainer and strategy="horoscale".

Needs lightning and scikit-learn.

    horoscalerun -np 2 python examples/lightning_digits.py
    torchrun --nproc-per-node 2 examples/lightning_digits.py
    python examples/lightning_digits.py --devices 2    # Lightning starts the other rank
"""

from __future__ import annotations

import argparse
from typing import Any

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import horoscale.lightning  # noqa: F401  # makes the strategy known


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
    parser.add_argument("--devices", type=int, default=1, help="ranks, if no launcher starts them")
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
        devices=arguments.devices,
        strategy="horoscale",
        max_epochs=arguments.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, for_training)
    (result,) = trainer.test(model, for_test, verbose=False)
    if trainer.is_global_zero:
        print(f"{trainer.world_size} ranks, accuracy {result['accuracy']:.4f}")


if __name__ == "__main__":
    main()
