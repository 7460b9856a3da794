"""DistributedOptimizer(sync_every=...): local SGD and DiLoCo, beside what one process computes."""

from __future__ import annotations

from typing import Any

import pytest
from support.local_sgd import OUTER, alike, assert_same_bits, make_model, reference
from support.torch_training import OPTIMIZERS, loss_of, wrap
from torch import nn

import horoscale.torch as hvd

pytestmark = pytest.mark.conformance


def train(model: nn.Module, optimizer: Any, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        optimizer.step()


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize("inner", OPTIMIZERS)
def test_trains_as_one_process_does(inner: str, outer: str, every: int) -> None:
    model = make_model()
    optimizer = wrap(model, OPTIMIZERS[inner], sync_every=every, outer_optimizer=OUTER[outer])
    train(model, optimizer, range(7))
    assert optimizer.local_steps == 7 % every
    optimizer.synchronize_parameters()
    assert optimizer.local_steps == 0
    assert_same_bits(model)
    alike(model, reference(OPTIMIZERS[inner], OUTER[outer], [every] * (7 // every) + [7 % every]))
