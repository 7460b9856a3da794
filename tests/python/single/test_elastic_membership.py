"""The decisions of elastic jobs, simulated with every fault at every step."""

from __future__ import annotations

import os

import pytest
from support.elastic_simulation import Simulation

from horoscale.common.views import View
from horoscale.driver.events import (
    Discovered,
    Ended,
    Reported,
    SendInterrupt,
    SendLeave,
    SendView,
    Start,
    Stop,
    Tick,
)
from horoscale.driver.membership import Membership, Rules

SEEDS = int(os.environ.get("HOROSCALE_TEST_ELASTIC_SEEDS", "300"))


@pytest.mark.parametrize("block", range(10))
def test_invariants_hold_whatever_fails_and_whenever(block: int) -> None:
    grown = interrupted = 0
    for seed in range(block * SEEDS // 10, (block + 1) * SEEDS // 10):
        job = Simulation(seed)
        job.run()
        grown += job.grown
        interrupted += job.interrupted
    assert grown > 0  # ranks were replaced or added
    assert interrupted > 0  # and not only after failures


HOSTS_BEFORE = (("a", 2), ("b", 2))


@pytest.mark.parametrize(
    ("min_np", "changes"),
    [
        (2, [(("a", 2), ("c", 2)), (("a", 2), ("b", 2), ("c", 2))]),  # a host leaves and returns
        (4, [(("a", 2), ("c", 1))]),  # fewer slots arrive than leave
        (4, [(("c", 2), ("d", 2))]),  # all leave
        (4, [()]),
    ],
)
def test_changes_come_to_an_end(min_np: int, changes: list[tuple[tuple[str, int], ...]]) -> None:
    job = Membership(Rules(np=4, min_np=min_np, max_np=4))
    now, commit = 0.0, 1
    views: dict[int, int] = {}
    actions = [*job.handle(Discovered(HOSTS_BEFORE), now)]
    for hosts in changes:
        actions += job.handle(Discovered(hosts), now)
    for _ in range(30):
        now, commit = now + 0.5, commit + 1
        done, actions = actions, []
        for action in done:
            match action:
                case (
                    Start(process=process, role=View(number=number))
                    | SendView(process=process, view=View(number=number))
                ):
                    views[process] = number
                case Start(process=process):
                    actions += job.handle(Reported(process, 0, (), None), now)
                case SendInterrupt(process=process):
                    report = Reported(process, views[process], (commit - 1, commit), None)
                    actions += job.handle(report, now)
                case SendLeave(process=process) | Stop(process=process):
                    actions += job.handle(Ended(process, 0, "ended"), now)
        actions += job.handle(Tick(), now)
    assert job.finished is None
    assert job.view <= 4
    assert job.size == 4
