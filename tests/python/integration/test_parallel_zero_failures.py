"""A rank dies in training with divided state."""

from __future__ import annotations

import pytest
from support.ranks import run_ranks

pytest.importorskip("torch")

# The last rank dies while the others wait for its part of a unit, for its gradients, or for its
# parameter updates. The others continue without it.
DEATHS = """
    import os, signal
    import torch
    import horoscale.torch as hvd
    import horoscale.torch.parallel as par

    def make(shared):
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(40, 40) for _ in range(3)))
        axis = par.Axis.of(hvd.global_process_set, "dp")
        par.shard(model, axis, 3, unit=torch.nn.Linear, shared=shared)
        return model, par.ZeroOptimizer(torch.optim.SGD, model, lr=0.01)

    def step(model, optimizer):
        optimizer.zero_grad()
        model(torch.ones(2, 40)).sum().backward()
        optimizer.step()

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    def die_in(phase, model, optimizer):
        if phase == "forward":
            model[1].register_forward_pre_hook(die)
        elif phase == "backward":
            model[1].register_full_backward_hook(die)
        else:
            optimizer.register_step_pre_hook(die)

    hvd.init()
    for phase, shared in (("forward", False), ("backward", True), ("step", True)):
        training = make(shared)
        step(*training)
        last = hvd.size() - 1
        if hvd.rank() == last:
            die_in(phase, *training)
        try:
            step(*training)
        except hvd.RankFailedError as error:
            print(f"rank {last}" in str(error))
        hvd.shutdown()
        hvd.init(list(range(last)))
    step(*make(True))
    hvd.shutdown()
"""


def test_the_others_are_told_of_a_death() -> None:
    ended = run_ranks(4, DEATHS, 100, OMP_NUM_THREADS="1")
    assert [one.returncode for one in ended] == [0, -9, -9, -9], [one.stderr for one in ended]
    assert [one.stdout for one in ended] == ["True\n" * 3, "True\n" * 2, "True\n", ""]
