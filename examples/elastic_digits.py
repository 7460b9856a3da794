"""Trains on scikit-learn's digits while ranks die, with the same accuracy as if none did.

    horoscalerun -np 3 --min-np 1 python examples/elastic_digits.py --kill-every 20

With --kill-every N, the last rank kills itself after N steps, unless it is the only one; the
launcher starts a replacement, which joins when it is ready.
"""

from __future__ import annotations

import argparse
import os
import signal

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import horoscale.torch as hvd

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=32, help="samples per rank and step")
parser.add_argument("--kill-every", type=int, default=0, metavar="N")
arguments = parser.parse_args()

torch.manual_seed(1)
torch.set_num_threads(1)
images, labels = load_digits(return_X_y=True)
split = train_test_split(images.astype("float32") / 16, labels, test_size=0.2, random_state=0)
train_x, test_x, train_y, test_y = map(torch.from_numpy, split)

hvd.init()
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = hvd.DistributedOptimizer(
    torch.optim.Adam(model.parameters(), 0.003), named_parameters=model.named_parameters()
)
plan = hvd.elastic.DataPlan(len(train_x), arguments.batch_size)
state = hvd.elastic.TorchState(model, optimizer, plan=plan, lived=0)


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> None:
    steps = 0
    while plan.epoch < arguments.epochs:
        for share in plan:
            steps += 1
            last = 1 < hvd.size() == hvd.rank() + 1
            if last and 0 < arguments.kill_every < steps:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            output = model(train_x[share.indices])
            loss = nn.functional.cross_entropy(output, train_y[share.indices], reduction="sum")
            # The mean over the samples of all ranks, whatever share of them this rank has.
            (loss * hvd.size() / share.total).backward()
            optimizer.step()
            state.commit()
        plan.next_epoch()
        state.commit()
        if hvd.rank() == 0:
            print(f"epoch {plan.epoch} on {hvd.size()} ranks", flush=True)


train(state)
if hvd.rank() == 0:
    with torch.no_grad():
        accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
    print(f"accuracy {accuracy:.3f}", flush=True)
