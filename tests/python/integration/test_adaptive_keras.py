"""Adaptive compression in frameworks that wait for operations in their own ways."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from support import namespaces
from support.namespaces import NetworkHosts
from support.rank_processes import RankProcesses

PROGRAM = Path(__file__).with_name("hosts_keras_adaptive.py")
PATIENCE_S = 120

pytestmark = pytest.mark.timeout(2 * PATIENCE_S)


def variables(backend: str) -> dict[str, str]:
    """The environment of the ranks."""
    for package in ("keras", backend):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    return {"KERAS_BACKEND": backend}


@pytest.mark.skipif(namespaces.why_not() is not None, reason=str(namespaces.why_not()))
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_a_slow_network(backend: str, tmp_path: Path) -> None:
    """Communication that is not hidden is seen, so something is compressed."""
    environment = variables(backend)
    with NetworkHosts(2) as hosts:
        hosts.limit_rate("10mbit")
        with RankProcesses(
            2,
            PROGRAM,
            "slow",
            folder=tmp_path,
            variables=environment,
            hosts=hosts,
            host_of=[0, 1],
        ) as job:
            for rank in range(2):
                job.wait(rank, PATIENCE_S)


@pytest.mark.parametrize("backend", ["tensorflow"])
def test_one_host(backend: str, tmp_path: Path) -> None:
    """There is nothing to compress."""
    with RankProcesses(2, PROGRAM, "near", folder=tmp_path, variables=variables(backend)) as job:
        for rank in range(2):
            job.wait(rank, PATIENCE_S)
