"""Trains two parts of a model in process sets that are defined at the start, on digits.

    horoscalerun -np 6 python examples/process_sets_static.py

The lower ranks hold the encoder, the upper ones the classifier. split_digits.py explains how they
work together. At the end rank 0 compares the result with the same training in one process.
"""

from __future__ import annotations

import os

import torch
from split_digits import (
    Groups,
    batches,
    load_data,
    make_optimizer,
    make_parts,
    parse_arguments,
    report,
    train_alone,
    train_step,
)

import horoscale.torch as hvd

# To define sets before init(), the number of ranks is read from the launcher's variables.
SIZE_VARIABLES = (
    "HOROSCALE_SIZE",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "SLURM_STEP_NUM_TASKS",
)


def init() -> Groups:
    """Join the job; every rank lists all sets in the same order, including those without it."""
    size = int(next((os.environ[name] for name in SIZE_VARIABLES if name in os.environ), "1"))
    if size < 3:
        raise SystemExit("needs 3 ranks or more: horoscalerun -np 6 python process_sets_static.py")
    lower, upper = list(range((size + 1) // 2)), list(range((size + 1) // 2, size))
    groups = Groups(
        encoders=hvd.ProcessSet(lower),
        classifiers=hvd.ProcessSet(upper),
        bridges=[hvd.ProcessSet([encoder, *upper]) for encoder in lower],
    )
    hvd.init(process_sets=[groups.encoders, groups.classifiers, *groups.bridges])
    return groups


def main() -> None:
    arguments = parse_arguments(__doc__)
    groups = init()
    torch.set_num_threads(1)  # the ranks share the cores
    train_images, test_images, train_labels, test_labels = load_data()

    parts = make_parts()
    part = groups.own_part(parts)
    optimizer = hvd.DistributedOptimizer(
        make_optimizer(part), part.named_parameters(), op=hvd.Sum, process_set=groups.own_set()
    )
    hvd.broadcast_parameters(part.state_dict(), groups.own_set().ranks[0], groups.own_set())
    for epoch in range(arguments.epochs):
        for batch in batches(train_images, train_labels, arguments.batch, epoch):
            train_step(groups, part, optimizer, batch)

    hvd.broadcast_parameters(parts.encoder.state_dict(), groups.encoders.ranks[0])
    hvd.broadcast_parameters(parts.classifier.state_dict(), groups.classifiers.ranks[0])
    if hvd.rank() == 0:
        alone = train_alone(train_images, train_labels, arguments.epochs, arguments.batch)
        report(parts, alone, test_images, test_labels)
    hvd.shutdown()


if __name__ == "__main__":
    main()
