"""A rank dies in divided attention."""

from __future__ import annotations

from support.ranks import run_ranks

# The last rank dies in its second step around the ring, forward or backward, or before it exchanges
# heads. The others continue without it.
DEATHS = """
    import os, signal
    import torch
    import horoscale.torch as hvd
    import horoscale.torch.parallel as par
    from horoscale.torch.parallel.context import ring, ulysses

    def step(attend):
        axis = par.Axis.of(hvd.global_process_set, "cp")
        x = torch.ones(1, 4, 1000, 4, requires_grad=True)
        attend(x, x, x, axis).sum().backward()

    def die_in(module, name, call):
        calls = 0
        whole = getattr(module, name)

        def die(*arguments):
            nonlocal calls
            calls += 1
            if calls == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return whole(*arguments)

        setattr(module, name, die)

    hvd.init()
    for attend, victim in (
        (par.ring_attention, (ring, "attend", 2)),
        (par.ring_attention, (ring, "attend_backward", 2)),
        (par.ulysses_attention, (ulysses, "_exchange", 1)),
    ):
        step(attend)
        last = hvd.size() - 1
        if hvd.rank() == last:
            die_in(*victim)
        try:
            step(attend)
        except hvd.RankFailedError as error:
            print(f"rank {last}" in str(error))
        hvd.shutdown()
        hvd.init(list(range(last)))
    step(par.ring_attention)
    hvd.shutdown()
"""


def test_the_others_are_told_of_a_death() -> None:
    ended = run_ranks(4, DEATHS, 100, OMP_NUM_THREADS="1")
    assert [one.returncode for one in ended] == [0, -9, -9, -9], [one.stderr for one in ended]
    assert [one.stdout for one in ended] == ["True\n" * 3, "True\n" * 2, "True\n", ""]
