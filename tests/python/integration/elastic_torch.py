"""A script that trains on ranks that die: elastic_torch.py FOLDER STEPS [KILL_STEP RANK]...

The first process with RANK at KILL_STEP kills itself within backward(). Each rank that reaches the
end writes the bits of its weights to FOLDER.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time

import torch
from elastic_journal import Journal, arguments

import horoscale.torch as hvd
from horoscale.elastic.membership import membership

FOLDER, STEPS, KILLS = arguments()

SIZE = int(os.environ.get("FULL_SIZE", "0"))  # training continues with fewer ranks than this

torch.set_num_threads(1)
even = hvd.elastic.surviving(lambda rank, size: rank % 2 == 0)
hvd.init(process_sets=[even])
torch.manual_seed(hvd.rank())
width = int(os.environ.get("WIDTH", "8"))
model = torch.nn.Sequential(
    torch.nn.Linear(4, width),
    torch.nn.Tanh(),
    torch.nn.Linear(width, width),
    torch.nn.Linear(width, 1),
)
inputs = torch.randn(200, 4, generator=torch.Generator().manual_seed(9))
optimizer = hvd.DistributedOptimizer(
    torch.optim.Adam(model.parameters(), 0.01), named_parameters=model.named_parameters()
)
plan = hvd.elastic.DataPlan(len(inputs), 3, seed=2)
state = hvd.elastic.TorchState(model, optimizer, plan=plan, step=0, views=[], seen=[])
journal = Journal(FOLDER, state, KILLS)


def kill(gradient: torch.Tensor) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@hvd.elastic.run
def train(state) -> None:
    journal.note("begin", source=membership().source, rank=hvd.rank())
    first = True
    state.views = [*state.views, [state.step, hvd.size()]]
    assert even.ranks == list(range(0, hvd.size(), 2)), even
    while state.step < STEPS or hvd.size() < SIZE:
        if not plan.position < plan.length:
            plan.next_epoch()
        share = plan.take(hvd.rank(), hvd.size())
        optimizer.zero_grad()
        if journal.dies():
            model[2].weight.register_hook(kill)
        loss = model(inputs[share.indices]).square().sum() / max(1, len(share)) * share.weight
        if even.included():
            one = hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=even)
            assert one.item() == even.size()
        loss.backward()
        optimizer.step()
        state.step += 1
        if hvd.size() < SIZE:
            time.sleep(0.02)  # a replacement is starting
        state.commit()
        if first:
            journal.note("step")
            first = False


state.register_reset_callbacks([lambda: journal.note("reset")])
train(state)
bits = hashlib.sha256(
    b"".join(p.detach().numpy().tobytes() for p in model.parameters())
).hexdigest()
journal.end(bits)
