"""Every fault in every phase once on one host, some on two; `make faults` runs many."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.harness import RANKS, build_shim, run
from faults.scenarios import ON_ONE_HOST, OVER_HOSTS, Scenario
from support import namespaces

WHY_NOT = namespaces.why_not()
SOME_OVER_HOSTS = (
    "kill -9 / handshake / hosts",
    "kill -9 / execute / hosts",
    "cable pulled / shutdown / hosts",
    "nothing arrives / negotiate / hosts",
    "half-open link / negotiate / hosts",
)


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_shim(tmp_path_factory.mktemp("shim"))


@pytest.mark.parametrize("scenario", ON_ONE_HOST, ids=lambda scenario: scenario.name)
def test_fault(scenario: Scenario, shim: Path) -> None:
    check(scenario, ON_ONE_HOST.index(scenario) % RANKS, shim)


@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
@pytest.mark.parametrize("name", SOME_OVER_HOSTS)
def test_fault_over_hosts(name: str, shim: Path) -> None:
    (scenario,) = (one for one in OVER_HOSTS if one.name == name)
    check(scenario, OVER_HOSTS.index(scenario) % RANKS, shim)


def check(scenario: Scenario, victim: int, shim: Path) -> None:
    outcome = run(scenario, victim, shim)
    assert outcome.good, [*outcome.hangs, *outcome.leaks, *outcome.wrong]
