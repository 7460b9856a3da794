"""A training program whose gradients mark its steps. Arguments: rows per rank."""

from __future__ import annotations

import sys

import torch

import horoscale.torch as hvd

hvd.init()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
)
x = torch.randn(int(sys.argv[1]), 32)
for _ in range(8):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
hvd.shutdown()
