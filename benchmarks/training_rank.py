"""One rank of one way of training, for benchmarks/training.py.

The benchmark starts it and sends it measurement orders.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from orders import serve, times
from torch import nn
from torch.nn import functional

WARM_UP = 2


class Attention(nn.Module):
    """A minimal transformer: 4 layers over 64 tokens."""

    def __init__(self, width: int = 256, layers: int = 4, words: int = 2000) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
                for _ in range(layers)
            )
        )
        self.output = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.output(self.layers(self.embedding(tokens)).mean(1))


def perceptron() -> nn.Module:
    """70 MB of gradients."""
    return nn.Sequential(
        *(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 4096), nn.ReLU()),
        *(nn.Linear(4096, 1700), nn.ReLU(), nn.Linear(1700, 10)),
    )


def convolutions() -> nn.Module:
    """Ten layers with batch norm, like the start of a ResNet; 19 MB of gradients."""
    channels = [3, 32, 32, 64, 64, 128, 128, 256, 256, 512, 512]
    layers: list[nn.Module] = []
    for index, (before, after) in enumerate(pairwise(channels)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        if index % 2:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10))


class Task(NamedTuple):
    """A model and the inputs of a step."""

    model: Callable[[], nn.Module]
    inputs: Callable[[], torch.Tensor]


TASKS = {
    "perceptron": Task(perceptron, lambda: torch.randn(64, 1024)),
    "convolutions": Task(convolutions, lambda: torch.randn(16, 3, 32, 32)),
    "transformer": Task(Attention, lambda: torch.randint(0, 2000, (8, 64))),
}

Step = Callable[[], object]
Trained = tuple[nn.Module, torch.optim.Optimizer]
Make = Callable[[Task], Trained]


def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer, task: Task) -> Step:
    """One step of the loop that users write."""
    inputs = task.inputs()
    targets = torch.randint(0, 10, (len(inputs),))

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def alone() -> Make:
    """No communication: the upper bound for the others on the same cores."""

    def make(task: Task) -> Trained:
        model = task.model()
        return model, sgd(model)

    return make


def join_gloo() -> None:
    """Join the job's process group."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    where = f"file://{os.environ['JOB_FILE']}"
    torch.distributed.init_process_group("gloo", where, rank=rank, world_size=size)


def ddp() -> Make:
    """PyTorch's DistributedDataParallel over Gloo."""
    join_gloo()

    def make(task: Task) -> Trained:
        model = nn.parallel.DistributedDataParallel(task.model(), gradient_as_bucket_view=True)
        return model, sgd(model)

    return make


def horoscale(**options: Any) -> Make:
    """DistributedOptimizer with `options`."""
    import horoscale.torch as hvd

    hvd.init()

    def make(task: Task) -> Trained:
        model = task.model()
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        names = model.named_parameters()
        return model, hvd.DistributedOptimizer(sgd(model), names, **options)

    return make


IMPLEMENTATIONS: dict[str, Callable[[], Make]] = {
    "alone": alone,
    "ddp": ddp,
    "horoscale": horoscale,
    "horoscale-backward": lambda: horoscale(gradients_ready="backward"),
    "horoscale-overlap": lambda: horoscale(overlap_step=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("implementation", choices=IMPLEMENTATIONS)
    parser.add_argument("socket", help="address of the benchmark")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    make = IMPLEMENTATIONS[arguments.implementation]()
    steps: dict[str, Step] = {}

    def carry_out(name: str, iterations: int) -> list[float]:
        if name not in steps:
            steps.clear()  # one model at a time
            steps[name] = plain_step(*make(TASKS[name]), TASKS[name])
        return times(steps[name], iterations, WARM_UP)

    serve(arguments.socket, carry_out)


if __name__ == "__main__":
    main()
