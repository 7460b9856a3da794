"""Trains a small network on scikit-learn's handwritten digits, on any number of ranks.

    horoscalerun -np 2 python examples/torch_digits.py

The global batch is the same for any number of ranks, and each rank processes its share, so the
result does not depend on -np. Rank 0 prints the progress, and at the end the accuracy on held-out
digits.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import horoscale.torch as hvd


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument(
        "--global-batch", type=int, default=192, help="samples of all ranks per step"
    )
    parser.add_argument("--learning-rate", type=float, default=0.002)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--compression",
        choices=("none", "fp16", "bf16", "int8", "int4", "onebit", "adaptive"),
        default="none",
        help="compression of gradients between hosts",
    )
    parser.add_argument(
        "--sync-every",
        type=int,
        metavar="STEPS",
        help="local SGD: steps of each rank by itself, after which the parameters are averaged",
    )
    parser.add_argument(
        "--diloco",
        action="store_true",
        help="apply what --sync-every averages by an outer optimizer with momentum",
    )
    return parser.parse_args()


def load_data() -> list[torch.Tensor]:
    """Return training and held-out images, training and held-out labels."""
    images, labels = load_digits(return_X_y=True)
    split = train_test_split(
        images.astype("float32") / 16.0, labels, test_size=0.2, random_state=0, stratify=labels
    )
    return [torch.from_numpy(part) for part in split]


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 64, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def own_shares(samples: int, global_batch: int, epoch: int) -> Iterator[torch.Tensor]:
    """Yield, for each step of an epoch, this rank's samples of the global batch."""
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(epoch))
    for batch in order.split(global_batch):
        yield batch[hvd.rank() :: hvd.size()]


def show_progress(epochs: int) -> Iterator[int]:
    """Yield the epochs, with a progress bar on a terminal."""
    if hvd.rank() == 0 and sys.stdout.isatty() and importlib.util.find_spec("rich"):
        from rich.progress import track

        return iter(track(range(epochs), description="training"))
    return iter(range(epochs))


def train(
    model: nn.Module,
    optimizer: Any,
    images: torch.Tensor,
    labels: torch.Tensor,
    arguments: argparse.Namespace,
) -> None:
    for epoch in show_progress(arguments.epochs):
        # Averages over the epoch's samples of all ranks: ranks exchange sums, not averages.
        total_loss = torch.zeros(())
        for share in own_shares(len(images), arguments.global_batch, epoch):
            optimizer.zero_grad()
            losses = nn.functional.cross_entropy(
                model(images[share]), labels[share], reduction="sum"
            )
            # Gradients are averaged over the ranks; the last batch may be divided unevenly.
            (losses * hvd.size() / arguments.global_batch).backward()
            optimizer.step()
            total_loss += losses.detach()
        if arguments.sync_every:
            optimizer.synchronize_parameters()
        mean_loss = hvd.allreduce(total_loss, op=hvd.Sum, name="loss").item() / len(images)
        if hvd.rank() == 0 and not sys.stdout.isatty():
            print(f"epoch {epoch + 1:2d} of {arguments.epochs}: loss {mean_loss:.4f}", flush=True)


def outer_optimizer(tensors: list[torch.Tensor]) -> torch.optim.Optimizer:
    """Return the optimizer of DiLoCo, which treats the ranks' average change as a gradient."""
    return torch.optim.SGD(tensors, lr=0.7, momentum=0.9, nesterov=True)


@torch.no_grad()
def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the accuracy on samples that are distributed among the ranks."""
    mine = slice(hvd.rank(), None, hvd.size())
    right = (model(images[mine]).argmax(dim=1) == labels[mine]).sum()
    return hvd.allreduce(right, op=hvd.Sum, name="right").item() / len(labels)


def compressor_of(name: str):
    """Return the compressor; the adaptive one takes the largest relative error as an argument."""
    return hvd.Compression.adaptive() if name == "adaptive" else getattr(hvd.Compression, name)


def main() -> None:
    arguments = parse_arguments()
    hvd.init()
    torch.set_num_threads(1)  # the ranks share the cores
    torch.manual_seed(arguments.seed)
    train_images, test_images, train_labels, test_labels = load_data()

    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=arguments.learning_rate)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=compressor_of(arguments.compression),
        sync_every=arguments.sync_every,
        outer_optimizer=outer_optimizer if arguments.diloco else None,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    hvd.barrier()
    begin = time.perf_counter()
    train(model, optimizer, train_images, train_labels, arguments)
    hvd.barrier()
    seconds = time.perf_counter() - begin

    result = accuracy(model, test_images, test_labels)
    sent = torch.tensor(hvd.metrics()["network_bytes_sent"])
    sent = hvd.allreduce(sent, op=hvd.Sum, name="sent").item()
    if hvd.rank() == 0:
        throughput = len(train_images) * arguments.epochs / seconds
        print(f"{hvd.size()} ranks: held-out accuracy {result:.4f}")
        print(f"training took {seconds:.2f} s: {throughput:.0f} samples/s")
        print(f"{sent:,} bytes went between hosts", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
