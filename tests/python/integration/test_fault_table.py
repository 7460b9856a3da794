"""Every fault in every phase once; `make faults` runs many."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.harness import RANKS, build_shim, run
from faults.scenarios import SCENARIOS, Scenario


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_shim(tmp_path_factory.mktemp("shim"))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_fault(scenario: Scenario, shim: Path) -> None:
    victim = SCENARIOS.index(scenario) % RANKS
    outcome = run(scenario, victim, shim)
    assert outcome.good, [*outcome.hangs, *outcome.leaks, *outcome.wrong]
