"""PyTorch's DistributedOptimizer when ranks fail."""

from __future__ import annotations

import re

import pytest
from support.ranks import run_ranks

# Rank 2 dies while all compute gradients; the others continue without it.
DEATH = """
    import os
    import torch
    import horoscale.torch as hvd

    hvd.init()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(300, 300, bias=False) for _ in range(4)]
    model = torch.nn.Sequential(*layers)

    def make():
        optimizer = torch.optim.SGD(model.parameters(), 0.001)
        return hvd.DistributedOptimizer(optimizer, model.named_parameters())

    def backward(optimizer):
        optimizer.zero_grad()
        model(torch.full((2, 300), hvd.rank() + 1.0)).sum().backward()

    def meet_the_death(gradient):
        if hvd.rank() == 2:
            os._exit(3)
        try:
            hvd.barrier()
        except hvd.RankFailedError:
            return
        raise AssertionError("rank 2 lives")

    optimizer = make()
    backward(optimizer)
    optimizer.step()
    hook = layers[1].weight.register_hook(meet_the_death)
    try:
        backward(optimizer)
    except hvd.RankFailedError:
        hook.remove()
    else:
        raise AssertionError("backward() has not met the death")
    hvd.shutdown()
    hvd.init([0, 1])
    for optimizer in (optimizer, make()):  # the same, and a new one
        backward(optimizer)
        own = layers[0].weight.grad.clone()
        optimizer.step()
        average = hvd.allreduce(own, name="own")
        assert torch.allclose(layers[0].weight.grad, average)
        weights = hvd.allgather(layers[0].weight.detach()[None])
        assert torch.equal(weights[0], weights[1])
    print("goes on")
"""


@pytest.mark.parametrize("ready", ["step", "backward"])
def test_training_goes_on_after_a_death_in_a_backward_pass(ready: str) -> None:
    ended = run_ranks(3, DEATH, 120, HOROSCALE_GRADIENTS_READY=ready)
    assert [one.returncode for one in ended] == [0, 0, 3], [one.stderr for one in ended]
    assert [one.stdout for one in ended[:2]] == ["goes on\n"] * 2


# Rank 1 runs a pass that rank 0 doesn't: it must not be matched with rank 0's next step.
def said_in_a_stall(program: str) -> str:
    """The standard error of two ranks when a stall ends them before they print."""
    ended = run_ranks(
        2,
        program,
        120,
        HOROSCALE_STALL_CHECK_TIME_SECONDS="0.5",
        HOROSCALE_STALL_SHUTDOWN_TIME_SECONDS="2",
    )
    assert all(one.returncode == 1 and not one.stdout for one in ended), ended
    return "".join(one.stderr for one in ended)


UNEQUAL_PASSES = """
    import torch
    import horoscale.torch as hvd

    hvd.init()
    parameter = torch.nn.Parameter(torch.zeros(3))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([parameter], 1.0), [("w", parameter)], gradients_ready="backward"
    )
    parameter.sum().backward()
    if hvd.rank() == 1:
        parameter.sum().backward()
        print("came back")
    optimizer.step()
    optimizer.zero_grad()
    parameter.sum().backward()
    print("came back")
"""


def test_unequal_passes_are_a_stall_that_names_the_option() -> None:
    said = said_in_a_stall(UNEQUAL_PASSES)
    assert "gradients_ready=backward.0" in said  # of rank 1's step
    assert "gradients_ready=backward.1" in said  # of rank 0's next step


# Rank 1 reports the second optimizer only in its step, and the first one's step needs rank 0.
UNUSED_OPTIMIZER = """
    import torch
    import horoscale.torch as hvd

    hvd.init()
    used, never, sometimes = (torch.nn.Parameter(torch.zeros(3)) for _ in range(3))
    first, second = (
        hvd.DistributedOptimizer(torch.optim.SGD(part, 1.0), gradients_ready="backward")
        for part in ([used, never], [sometimes])
    )
    loss = used.sum()
    if hvd.rank() == 0:
        loss = loss + sometimes.sum()
    loss.backward()
    first.step()
    second.step()
    print("came back")
"""


def test_an_optimizer_that_one_rank_has_no_use_for_is_a_stall_that_names_the_option() -> None:
    said = said_in_a_stall(UNUSED_OPTIMIZER)
    assert re.search(r'warning: allreduce "gradients_ready=backward#2\.0" .*has waited', said)
