"""Suites that run on the ranks of an mpirun: those in on_ranks/, and part of parallel/."""

from __future__ import annotations

import pytest
from conftest import ROOT, Mpi

TESTS = ROOT / "tests" / "python"
PYTEST = ("-m", "pytest", "-q", "--timeout=60", "--tb=short")
# By name, so that no rank imports the frameworks' files.
SUBSET = ("-m", "conformance", *map(str, sorted((TESTS / "parallel").glob("test_numpy_*.py"))))

pytestmark = pytest.mark.timeout(300)


def run(mpi: Mpi, ranks: int, *arguments: str, **variables: str) -> None:
    ended = mpi.run(ranks, *PYTEST, *arguments, seconds=200, **variables)
    assert ended.returncode == 0, ended.stdout[-10_000:] + ended.stderr[-2000:]
    assert ended.stdout.count(" passed") == ranks, ended.stdout
    assert "skipped" not in ended.stdout, ended.stdout


@pytest.mark.parametrize("backend", ["native", "mpi"])
def test_communicators_of_mpi4py(mpi: Mpi, backend: str) -> None:
    run(mpi, 4, "--with-mpi", str(TESTS / "mpi" / "on_ranks"), HOROSCALE_BACKEND=backend)


def test_the_parallel_tests_pass_over_mpi(mpi: Mpi) -> None:
    # They check the bits of our own sums; test_collectives.py tests MPI's collectives.
    run(mpi, 3, *SUBSET, HOROSCALE_BACKEND="mpi", HOROSCALE_DETERMINISTIC="1")


def test_the_parallel_tests_pass_in_shared_memory_under_mpirun(both: dict[str, Mpi]) -> None:
    """Once per family: the transport is the same in all columns."""
    for mpi in both.values():
        run(mpi, 2, *SUBSET)


def test_the_parallel_tests_pass_on_the_abi_of_the_standard(both: dict[str, Mpi]) -> None:
    """The wheel of mpi4py lacks a module for it: MPICH's second library is used without mpi4py."""
    mpi = both["mpich"]
    (library,) = (mpi.prefix / "lib").glob("libmpi_abi.so.*")
    variables = {"HOROSCALE_LIBMPI": str(library), "HOROSCALE_BACKEND": "mpi"}
    ended = mpi.run(1, "-m", "horoscale.runner", "--check-build", **variables)
    assert str(library) in ended.stdout, ended.stdout
    run(mpi, 2, *SUBSET, **variables)
