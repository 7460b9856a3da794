"""Attention that ranks divide, when one of them dies."""

from __future__ import annotations

import pytest
from support.ranks import run_ranks

# Rank 1 dies in its second step round the ring, forward or backward; or before it exchanges heads.
DEATH = """
    import os, signal
    import torch
    import horoscale.torch as hvd
    import horoscale.torch.parallel as par
    from horoscale.torch.parallel.context import ring, ulysses

    hvd.init()
    axis = par.Axis.of(hvd.global_process_set, "cp")
    x = torch.ones(1, 3, 1000, 4, requires_grad=True)
    attend = getattr(par, "{attention}")
    attend(x, x, x, axis).sum().backward()
    if hvd.rank() == 1:
        calls = 0
        module = ring if "{attention}" == "ring_attention" else ulysses
        whole = getattr(module, "{victim}")

        def die(*arguments):
            global calls
            calls += 1
            if calls == {call}:
                os.kill(os.getpid(), signal.SIGKILL)
            return whole(*arguments)

        setattr(module, "{victim}", die)
    try:
        attend(x, x, x, axis).sum().backward()
    except hvd.RankFailedError as error:
        print("rank 1" in str(error))
    hvd.shutdown()
"""


@pytest.mark.parametrize(
    ("attention", "victim", "call"),
    [
        ("ring_attention", "attend", 2),
        ("ring_attention", "attend_backward", 2),
        ("ulysses_attention", "_exchange", 1),
    ],
)
def test_the_others_are_told_of_a_death(attention: str, victim: str, call: int) -> None:
    program = DEATH.format(attention=attention, victim=victim, call=call)
    ended = run_ranks(3, program, 100, OMP_NUM_THREADS="1")
    assert [one.returncode for one in ended] == [0, -9, 0], [one.stderr for one in ended]
    assert [ended[rank].stdout for rank in (0, 2)] == ["True\n"] * 2
