"""Trains an encoder and a decoder in separate process sets; a rank dies, and both continue.

    horoscalerun -np 4 --min-np 2 python examples/elastic_process_sets.py --kill encoder

The encoder maps the image of a digit to 16 numbers, from which the decoder predicts the digit. The
first half of the ranks trains the encoder, the others the decoder. When the ranks change, the sets
are assigned again. With --kill, a member of a set dies during the third epoch, and that epoch is
repeated without it. The launcher starts a replacement, which joins at a later commit.
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

CODE, BATCH = 16, 96

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--kill", choices=["encoder", "decoder"])
arguments = parser.parse_args()

torch.manual_seed(1)
torch.set_num_threads(1)
images, labels = load_digits(return_X_y=True)
split = train_test_split(images.astype("float32") / 16, labels, test_size=0.2, random_state=0)
train_x, test_x, train_y, test_y = map(torch.from_numpy, split)

encoders = hvd.elastic.surviving(lambda rank, size: rank < size // 2)
decoders = hvd.elastic.surviving(lambda rank, size: rank >= size // 2)
hvd.init(process_sets=[encoders, decoders])
encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, CODE))
decoder = nn.Sequential(nn.ReLU(), nn.Linear(CODE, 64), nn.ReLU(), nn.Linear(64, 10))
adams = [torch.optim.Adam(part.parameters(), 0.003) for part in (encoder, decoder)]
state = hvd.elastic.TorchState(
    encoder=encoder,
    decoder=decoder,
    encoder_adam=adams[0],
    decoder_adam=adams[1],
    epoch=0,
    full_size=hvd.size(),
)


def share_of(batch: torch.Tensor, process_set: hvd.ProcessSet) -> torch.Tensor:
    return batch.tensor_split(process_set.size())[process_set.rank()]


def train_step(chosen: torch.Tensor) -> None:
    """Train on one batch: codes go from encoders to decoders, and their gradients go back."""
    mine, part = (encoders, encoder) if encoders.included() else (decoders, decoder)
    part.zero_grad()
    codes = gradients = torch.empty(0, CODE)
    if mine is encoders:
        codes = encoder(share_of(train_x[chosen], mine))
    received = hvd.allgather(codes.detach())
    if mine is decoders:
        own = share_of(received, mine).requires_grad_()
        target = share_of(train_y[chosen], mine)
        loss = nn.functional.cross_entropy(decoder(own), target, reduction="sum")
        (loss / len(chosen)).backward()
        gradients = own.grad
    gradients = hvd.allgather(gradients)
    if mine is encoders:
        codes.backward(share_of(gradients, mine))
    parameters = list(part.parameters())
    sums = hvd.grouped_allreduce([p.grad for p in parameters], op=hvd.Sum, process_set=mine)
    for parameter, gradient in zip(parameters, sums, strict=True):
        parameter.grad = gradient
    adams[part is decoder].step()


def exchange() -> None:
    """Send both parts to all ranks, because any of them may be the survivor."""
    for part, adam, process_set in zip(
        (encoder, decoder), adams, (encoders, decoders), strict=True
    ):
        hvd.broadcast_parameters(part.state_dict(), process_set.ranks[0])
        hvd.broadcast_optimizer_state(adam, process_set.ranks[0])


def dies() -> bool:
    if arguments.kill is None or state.epoch != 2 or hvd.size() < state.full_size:
        return False
    ranks = (encoders if arguments.kill == "encoder" else decoders).ranks
    return len(ranks) > 1 and hvd.rank() == ranks[-1]


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> None:
    while state.epoch < arguments.epochs:
        order = torch.Generator().manual_seed(state.epoch)
        for number, chosen in enumerate(torch.randperm(len(train_x), generator=order).split(BATCH)):
            if number == 5 and dies():
                os.kill(os.getpid(), signal.SIGKILL)
            train_step(chosen)
        exchange()
        state.epoch += 1
        state.commit()
        if hvd.rank() == 0:
            who = f"{encoders.ranks} encode, {decoders.ranks} decode"
            print(f"epoch {state.epoch} on {hvd.size()} ranks: {who}", flush=True)


train(state)
if hvd.rank() == 0:
    with torch.no_grad():
        accuracy = (decoder(encoder(test_x)).argmax(1) == test_y).float().mean().item()
    print(f"accuracy {accuracy:.3f}", flush=True)
