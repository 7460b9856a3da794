"""Shared by the examples of process sets: a model in two parts, and a training step across sets.

One set of ranks holds copies of the encoder, another one copies of the classifier. Both divide each
batch among their ranks, and each sums its own gradients. Activations are sent forward, and their
gradients back, by broadcasts in *bridges*. A bridge is a set of one encoder and all classifiers.
The result is that of one process with the whole model and the whole batch, see train_alone().
float64 allows a strict comparison.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import horoscale.torch as hvd

HIDDEN = 64
Batch = tuple[torch.Tensor, torch.Tensor]


@dataclass
class Parts:
    """The two parts of the model. Every rank has both, and trains the one of its set."""

    encoder: nn.Module
    classifier: nn.Module


@dataclass
class Groups:
    """Which ranks train which part."""

    encoders: hvd.ProcessSet
    classifiers: hvd.ProcessSet
    bridges: list[hvd.ProcessSet]  # for each encoder

    def own_set(self) -> hvd.ProcessSet:
        return self.encoders if self.encoders.included() else self.classifiers

    def own_part(self, parts: Parts) -> nn.Module:
        return parts.encoder if self.encoders.included() else parts.classifier


def parse_arguments(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=120, help="samples per step, of all ranks")
    return parser.parse_args()


def load_data() -> list[torch.Tensor]:
    """Return training and held-out images, training and held-out labels."""
    images, labels = load_digits(return_X_y=True)
    split = train_test_split(images / 16.0, labels, test_size=0.2, random_state=0, stratify=labels)
    return [torch.from_numpy(part) for part in split]


def make_parts() -> Parts:
    torch.manual_seed(1)
    encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, HIDDEN), nn.ReLU())
    return Parts(encoder.double(), nn.Linear(HIDDEN, 10).double())


def make_optimizer(part: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(part.parameters(), lr=0.2, momentum=0.9)


def batches(images: torch.Tensor, labels: torch.Tensor, size: int, epoch: int) -> Iterator[Batch]:
    """Yield the batches of an epoch, the same on all ranks."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
    for chosen in order.split(size):
        yield images[chosen], labels[chosen]


def train_step(
    groups: Groups, part: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch
) -> None:
    """Run this rank's share of a step, on a batch that all ranks have."""
    optimizer.zero_grad()
    if groups.encoders.included():
        encode(groups, part, batch)
    else:
        classify(groups, part, batch)
    optimizer.step()


def encode(groups: Groups, encoder: nn.Module, batch: Batch) -> None:
    """Encode every n-th image, send the result forward, and continue with its gradient."""
    position, count = groups.encoders.rank(), groups.encoders.size()
    bridge, top = groups.bridges[position], groups.classifiers.ranks[0]
    hidden = encoder(batch[0][position::count])
    hvd.broadcast(hidden.detach(), hvd.rank(), name="hidden", process_set=bridge)
    gradient = hvd.broadcast(torch.empty_like(hidden), top, name="gradient", process_set=bridge)
    hidden.backward(gradient)


def classify(groups: Groups, classifier: nn.Module, batch: Batch) -> None:
    """Receive the encoders' results, classify every n-th row, and send the gradients back."""
    samples, encoders = len(batch[0]), groups.encoders.ranks
    rows = [slice(i, None, len(encoders)) for i in range(len(encoders))]
    hidden = torch.empty(samples, HIDDEN, dtype=torch.float64)
    handles = [
        hvd.broadcast_async_(
            torch.empty_like(hidden[mine]), root, name="hidden", process_set=bridge
        )
        for mine, root, bridge in zip(rows, encoders, groups.bridges, strict=True)
    ]
    for mine, handle in zip(rows, handles, strict=True):
        hidden[mine] = hvd.synchronize(handle)

    hidden.requires_grad_()
    share = slice(groups.classifiers.rank(), None, groups.classifiers.size())
    scores = classifier(hidden[share])
    loss = nn.functional.cross_entropy(scores, batch[1][share], reduction="sum") / samples
    loss.backward()

    # Each classifier has the gradients of its rows, and zeros elsewhere.
    gradient = hvd.allreduce(
        hidden.grad, op=hvd.Sum, name="gradient", process_set=groups.classifiers
    )
    top = groups.classifiers.ranks[0]
    handles = [
        hvd.broadcast_async(gradient[mine], top, name="gradient", process_set=bridge)
        for mine, bridge in zip(rows, groups.bridges, strict=True)
    ]
    for handle in handles:
        hvd.synchronize(handle)


def train_alone(images: torch.Tensor, labels: torch.Tensor, epochs: int, size: int) -> Parts:
    """Run the same training in one process."""
    parts = make_parts()
    model = nn.Sequential(parts.encoder, parts.classifier)
    optimizer = make_optimizer(model)
    for epoch in range(epochs):
        for batch, of_batch in batches(images, labels, size, epoch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), of_batch).backward()
            optimizer.step()
    return parts


@torch.no_grad()
def report(parts: Parts, alone: Parts, images: torch.Tensor, labels: torch.Tensor) -> None:
    """Print the accuracy; fail if the parameters differ from those of one process."""
    difference = 0.0
    for part, expected in ((parts.encoder, alone.encoder), (parts.classifier, alone.classifier)):
        for one, other in zip(part.parameters(), expected.parameters(), strict=True):
            difference = max(difference, (one - other).abs().max().item())
    guesses = parts.classifier(parts.encoder(images)).argmax(dim=1)
    accuracy = (guesses == labels).double().mean().item()
    print(f"{hvd.size()} ranks: held-out accuracy {accuracy:.4f}")
    print(f"largest difference from one process: {difference:.1e}", flush=True)
    if difference > 1e-8:
        raise SystemExit("the ranks' result is not that of one process")
