"""The transport over MPI fulfills the contract of all transports."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import ROOT, Mpi

# HOROSCALE_BUILD selects another build than that of `make build`.
PROGRAM = Path(os.environ.get("HOROSCALE_BUILD", ROOT / "build" / "release"))
PROGRAM = PROGRAM / "tests" / "cpp" / "mpi_transport_program"


@pytest.mark.skipif(not PROGRAM.exists(), reason="the C++ tests are not built: make build")
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_promises_of_a_transport(mpi: Mpi, ranks: int) -> None:
    ended = mpi.run_program(ranks, str(PROGRAM))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("kept on rank") == ranks, ended.stdout
