"""Elastic jobs with faults at random moments, and fault-free replays; `make faults` runs many."""

from __future__ import annotations

import pytest
from faults.elastic import run_batch
from support import namespaces

PLAN = [
    ("during recovery", "one host", 5),
    ("several at once", "one host", 8),
    ("a host is lost", "two names", 3),
]
OVER_HOSTS = ("a supervisor is killed", "two hosts", 2)


@pytest.mark.timeout(300)
def test_the_weights_are_those_without_faults() -> None:
    plan = PLAN if namespaces.why_not() is not None else [*PLAN, OVER_HOSTS]
    wrong = {one.fault: one.wrong for one in run_batch(plan, jobs=2) if one.wrong}
    assert wrong == {}
