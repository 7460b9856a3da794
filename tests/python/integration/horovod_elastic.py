"""A script for Horovod's elastic mode that uses nothing of horoscale's: horovod_elastic.py FOLDER.

The second rank kills itself in the second epoch. The third epoch begins once it has been replaced.
"""

import hashlib
import json
import os
import signal
import sys
import time

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FOLDER = sys.argv[1]
EPOCHS, BATCH, PER_COMMIT, RATE = 3, 4, 2, 0.01

hvd.init()
torch.manual_seed(17 + hvd.rank())
torch.set_num_threads(1)
places = torch.arange(48, dtype=torch.float32)
dataset = TensorDataset(torch.stack([places, places.sin()], 1) / 48, places.cos())
sampler = hvd.elastic.ElasticSampler(dataset, shuffle=True)
loader = DataLoader(dataset, batch_size=BATCH, sampler=sampler)
model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=RATE * hvd.size(), momentum=0.9)
optimizer = hvd.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters(), compression=hvd.Compression.none
)
resets = []


def on_state_reset():
    resets.append(hvd.size())
    for group in optimizer.param_groups:
        group["lr"] = RATE * hvd.size()


def train_batch(state, samples, target):
    mark = os.path.join(FOLDER, "killed")
    if (state.epoch, state.batch, hvd.rank()) == (1, 3, 1) and not os.path.exists(mark):
        open(mark, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(samples)[:, 0], target)
    loss.backward()
    optimizer.step()


@hvd.elastic.run
def train(state):
    state.began = [*state.began, [state.epoch, state.batch, hvd.size()]]
    while state.epoch < EPOCHS:
        if state.epoch == EPOCHS - 1:
            while hvd.size() < 2:
                time.sleep(0.02)
                state.check_host_updates()
        offset = state.batch
        for index, (samples, target) in enumerate(loader):
            state.batch = offset + index
            train_batch(state, samples, target)
            state.sampler.record_batch(index, BATCH)
            state.batch = offset + index + 1
            if state.batch % PER_COMMIT == 0:
                state.commit()
        seen = hvd.allreduce(torch.tensor(float(state.sampler.processed_num)), name="seen")
        state.processed = [*state.processed, int(seen.item())]
        state.sampler.set_epoch(state.epoch + 1)
        state.epoch += 1
        state.batch = 0
        state.commit()


state = hvd.elastic.TorchState(
    model=model, optimizer=optimizer, sampler=sampler, epoch=0, batch=0, began=[], processed=[]
)
state.register_reset_callbacks([on_state_reset])
train(state)
values = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
done = {
    "weights": hashlib.sha256(values).hexdigest(),
    "began": state.began,
    "processed": state.processed,
    "rate": optimizer.param_groups[0]["lr"],
    "resets": resets,
}
with open(os.path.join(FOLDER, f"done.{hvd.rank()}"), "w") as file:
    json.dump(done, file)
