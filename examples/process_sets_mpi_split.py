"""Two groups of ranks, split by MPI, learn two tasks on a shared embedding of handwritten digits.

    mpirun -np 4 python examples/process_sets_mpi_split.py

Even ranks learn which digit an image shows, odd ranks whether it is odd. All ranks share the
embedding, whose gradients are averaged over all ranks. The head of a task belongs to the ranks of
its group, and its gradients are averaged in the process set from comm.Split(). Requires mpi4py.
"""

from __future__ import annotations

import argparse

import torch
from mpi4py import MPI
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import horoscale.torch as hvd

TASKS = ("digit", "odd")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=96, help="samples per group and step")
    return parser.parse_args()


def load_data(task: str) -> list[torch.Tensor]:
    """Return training and held-out images, training and held-out labels of a task."""
    images, labels = load_digits(return_X_y=True)
    labels = labels if task == "digit" else labels % 2
    split = train_test_split(
        images.astype("float32") / 16.0, labels, test_size=0.2, random_state=0, stratify=labels
    )
    return [torch.from_numpy(part) for part in split]


def main() -> None:
    arguments = parse_arguments()
    world = MPI.COMM_WORLD
    task = TASKS[world.rank % 2]
    group = hvd.ProcessSet(world.Split(color=world.rank % 2, key=world.rank))
    hvd.init(world, process_sets=[group])
    torch.set_num_threads(1)  # the ranks share the cores
    torch.manual_seed(1)

    embedding = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
    head = nn.Linear(64, 10 if task == "digit" else 2)
    optimizers = []
    for name, part, process_set in (
        ("embedding", embedding, hvd.global_process_set),
        (f"head of {task}", head, group),
    ):
        parameters = [(f"{name}.{key}", value) for key, value in part.named_parameters()]
        hvd.broadcast_parameters(
            parameters, root_rank=process_set.ranks[0], process_set=process_set
        )
        optimizer = torch.optim.Adam(part.parameters(), lr=0.005)
        optimizers.append(
            hvd.DistributedOptimizer(
                optimizer, named_parameters=parameters, process_set=process_set
            )
        )

    train_images, test_images, train_labels, test_labels = load_data(task)
    for epoch in range(arguments.epochs):
        order = torch.randperm(len(train_images), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(arguments.batch):
            share = batch[hvd.rank(group) :: hvd.size(group)]
            for optimizer in optimizers:
                optimizer.zero_grad()
            losses = nn.functional.cross_entropy(
                head(embedding(train_images[share])), train_labels[share], reduction="sum"
            )
            (losses * hvd.size(group) / len(batch)).backward()
            for optimizer in optimizers:
                optimizer.step()

    with torch.no_grad():
        accuracy = (head(embedding(test_images)).argmax(dim=1) == test_labels).float().mean()
    if hvd.rank(group) == 0:
        print(f"{task}: {hvd.size(group)} ranks, held-out accuracy {accuracy:.4f}\n", end="")
    hvd.shutdown()


if __name__ == "__main__":
    main()
