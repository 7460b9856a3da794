"""Trains two parts of a model in process sets that change during training, on digits.

    horoscalerun -np 6 python examples/process_sets_dynamic.py

Ranks move from the encoder to the classifier, and some of them back. After a few epochs the sets
are removed and others are added, and the parameters and momenta of both parts are sent to the ranks
that train them next. split_digits.py explains how the sets work together. At the end rank 0
compares the result with the same training in one process.
"""

from __future__ import annotations

from typing import Any

import torch
from split_digits import (
    Groups,
    Parts,
    batches,
    load_data,
    make_optimizer,
    make_parts,
    parse_arguments,
    report,
    train_alone,
    train_step,
)
from torch import nn

import horoscale.torch as hvd

ENCODING = (0.2, 0.6, 0.4, 0.8)  # fraction of the ranks that encode, in each phase


def add_set(ranks: list[int]) -> hvd.ProcessSet:
    everyone = len(ranks) == hvd.size()
    return hvd.global_process_set if everyone else hvd.add_process_set(ranks)


def add_groups(encoders: int) -> Groups:
    """Regroup all ranks: the first of them encode, the others classify."""
    lower, upper = list(range(encoders)), list(range(encoders, hvd.size()))
    bridges = [[encoder, *upper] for encoder in lower]
    return Groups(add_set(lower), add_set(upper), [add_set(ranks) for ranks in bridges])


def remove_groups(groups: Groups) -> None:
    # If the bridge is the global set, it stays.
    for process_set in (groups.encoders, groups.classifiers, *groups.bridges):
        hvd.remove_process_set(process_set)


class Trained:
    """A part of the model with its momenta, which moves from set to set."""

    def __init__(self, part: nn.Module) -> None:
        self.part = part
        self.momenta: dict[str, Any] | None = None
        self.root = 0  # a rank that has its latest state

    def hand_over(self) -> torch.optim.Optimizer:
        """Send parameters and momenta to all ranks; return an optimizer that has them."""
        optimizer = make_optimizer(self.part)
        if self.momenta is not None:
            optimizer.load_state_dict(self.momenta)
        hvd.broadcast_parameters(self.part.state_dict(), self.root)
        hvd.broadcast_optimizer_state(optimizer, self.root)
        return optimizer


def epochs_of(phase: int, epochs: int) -> range:
    return range(epochs * phase // len(ENCODING), epochs * (phase + 1) // len(ENCODING))


def train(parts: Parts, images: torch.Tensor, labels: torch.Tensor, epochs: int, size: int) -> None:
    encoder, classifier = Trained(parts.encoder), Trained(parts.classifier)
    for phase, share in enumerate(ENCODING):
        groups = add_groups(encoders=min(max(1, round(share * hvd.size())), hvd.size() - 1))
        optimizers = encoder.hand_over(), classifier.hand_over()
        mine, plain = (
            (encoder, optimizers[0]) if groups.encoders.included() else (classifier, optimizers[1])
        )
        optimizer = hvd.DistributedOptimizer(
            plain, mine.part.named_parameters(), op=hvd.Sum, process_set=groups.own_set()
        )
        for epoch in epochs_of(phase, epochs):
            for batch in batches(images, labels, size, epoch):
                train_step(groups, mine.part, optimizer, batch)
        mine.momenta = optimizer.state_dict()
        encoder.root, classifier.root = groups.encoders.ranks[0], groups.classifiers.ranks[0]
        if hvd.rank() == 0:
            print(f"phase {phase + 1}: {groups.encoders.ranks} encode, others classify", flush=True)
        remove_groups(groups)
        del optimizer  # its hooks belong to removed sets
    encoder.hand_over()
    classifier.hand_over()


def main() -> None:
    arguments = parse_arguments(__doc__)
    hvd.init(process_sets="dynamic")
    if hvd.size() < 2:
        raise SystemExit("needs 2 ranks or more: horoscalerun -np 6 python process_sets_dynamic.py")
    torch.set_num_threads(1)  # the ranks share the cores
    train_images, test_images, train_labels, test_labels = load_data()
    parts = make_parts()
    train(parts, train_images, train_labels, arguments.epochs, arguments.batch)
    if hvd.rank() == 0:
        alone = train_alone(train_images, train_labels, arguments.epochs, arguments.batch)
        report(parts, alone, test_images, test_labels)
    hvd.shutdown()


if __name__ == "__main__":
    main()
